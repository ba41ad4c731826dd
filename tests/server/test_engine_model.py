"""The engine on a real model: cached prefixes are the same bits, and are not computed again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from outrider.config.engine import parse_engine
from outrider.decoding.events import Event
from outrider.decoding.types import Draft, FloatArray, IntArray, Verdict
from outrider.engines.base import ForwardItem
from outrider.engines.native import NativeModel
from outrider.engines.prefix import PrefixCache
from outrider.engines.step import CachedStepEngine
from outrider.models.open import open_model
from outrider.pipeline import Pipeline, build
from outrider.server.engine.async_engine import ServerEngine
from tests.server.engine_support import Shared, alone, ends, read, request, serve, tokens

pytestmark = pytest.mark.model
SYSTEM = "You are a careful assistant. Answer in one short sentence, and name the source of each fact. "


@pytest.fixture(scope="module")
def model(default_model: Path) -> NativeModel:
    return NativeModel.load(open_model(default_model))


@pytest.fixture(scope="module")
def pipeline(default_model: Path, model: NativeModel) -> Pipeline:
    config = parse_engine(str(default_model), "suffix", max_num_seqs=3, max_model_len=2048)
    return build(config, lambda source, threads: model, progress=False)


def prompt_of(pipeline: Pipeline, count: int, question: str) -> list[int]:
    """A system prompt of `count` tokens and a question."""
    encode = pipeline.tokenizer.encode
    text = encode(" ".join(f"Rule {i}: {SYSTEM}" for i in range(count // 20)))
    assert len(text) >= count
    return [*text[:count], *encode(question)]


def rows(engine: CachedStepEngine, prompt: Sequence[int], chunk: int) -> tuple[list[FloatArray], int]:
    """The logits of three steps after a prompt, and how many of its tokens came from the prefix cache."""
    seq = engine.open(prompt, len(prompt) + 30, "a")
    taken = seq.committed
    while engine.prefill(seq, chunk):
        pass
    found = []
    for draft in (Draft.chain([28, 30, 260], "t"), Draft.empty(), Draft.chain([339], "t")):
        (scores,) = engine.score([(seq, draft)])
        found.append(scores.logits)
        path = (0, 1) if len(draft) > 1 else ()
        engine.commit(seq, Verdict(path, int(scores.logits[len(path)].argmax()), "recovered"))
    engine.close(seq)
    return found, taken


class OffByOne(PrefixCache):
    """The broken twin: a block is kept under the tokens of the block after it."""

    def _keys(self, tokens: Sequence[int] | IntArray) -> list[bytes]:
        return super()._keys(list(tokens)[1:])


def test_logits_after_a_cached_prefix_are_the_same_bits(pipeline: Pipeline, model: NativeModel) -> None:
    plain = CachedStepEngine(model)
    sharing = CachedStepEngine(model)
    sharing.share_prefixes(10**8)
    prompts = [prompt_of(pipeline, 100, question) for question in ("Who?", "Why, then?", "Who?")]
    for prompt, least in zip(prompts, (0, 96, 96), strict=True):
        found, taken = rows(sharing, prompt, 37)
        assert taken >= least
        for mine, expected in zip(found, rows(plain, prompt, 1000)[0], strict=True):
            np.testing.assert_array_equal(mine.view(np.uint32), expected.view(np.uint32))
    sharing.prefixes = OffByOne(model, 10**8)
    rows(sharing, prompts[0], 1000)
    shuffled = [prompts[0][0] + 1, *prompts[0][1:]]
    found, taken = rows(sharing, shuffled, 1000)
    assert taken
    assert (found[0] != rows(plain, shuffled, 1000)[0][0]).any()


def test_a_second_request_with_a_long_system_prompt_computes_a_tenth_of_the_tokens(
    pipeline: Pipeline, model: NativeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its first token; serve.py measures the time."""
    computed = 0
    forward = model.forward

    def counted(items: Sequence[ForwardItem]) -> list[FloatArray]:
        nonlocal computed
        computed += sum(len(item.tokens) for item in items)
        return forward(items)

    monkeypatch.setattr(model, "forward", counted)
    engine = Shared(model)
    shared = replace(pipeline, engine=engine)
    asked = [
        request(name, prompt_of(pipeline, 1000, question), max_tokens=8)
        for name, question in (("a", " What is a star?"), ("b", " What is a whale?"))
    ]

    async def client(engine: ServerEngine) -> list[int]:
        counts = []
        for sample in asked:
            before = computed
            stream = engine.submit([sample])
            events = await stream.batch()
            counts.append(computed - before)
            events += await read(stream)
        assert tokens(events, "b") == alone(pipeline, asked[1])
        assert engine.stats.prefix_hit_tokens >= 992
        return counts

    first, second = serve(ServerEngine(shared), client)
    assert first >= 1000
    assert second < first / 10


def test_texts_on_a_busy_engine_are_those_of_a_quiet_one(pipeline: Pipeline, model: NativeModel) -> None:
    """Greedy and drawn, with prompts that begin alike, some cancelled half-way."""
    engine = Shared(model)
    shared = replace(pipeline, engine=engine)
    asked = [
        request(
            f"r{i}",
            prompt_of(pipeline, 40 * (i % 3 + 1), question),
            max_tokens=16,
            temperature=(i % 2) * 0.8,
        )
        for i, question in enumerate((" Name a river.", " Why?", " List: a, b, a, b, a,", " So", " 1 2 3 4"))
    ]

    async def client(engine: ServerEngine) -> list[Event]:
        streams = [engine.submit([sample]) for sample in asked]
        events = await streams[1].batch()
        streams[1].cancel()
        streams.append(engine.submit([replace(asked[0], request_id="late")]))
        for stream in streams:
            events += await read(stream)
        return events

    events = serve(ServerEngine(shared), client)
    for sample in [*asked, replace(asked[0], request_id="late")]:
        said, expected = tokens(events, sample.request_id), alone(pipeline, sample)
        assert said == (expected[: len(said)] if sample.request_id == "r1" else expected)
        assert ends(events)[sample.request_id].error is None
