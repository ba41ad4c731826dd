"""Cached prefixes equal computed ones, and the prefix cache keeps to its limit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from outrider.decoding.types import Draft, FloatArray, IntArray, Verdict
from outrider.engines.base import Cache, SeqHandle, SharingModel
from outrider.engines.prefix import PrefixCache
from outrider.engines.step import CachedStepEngine
from outrider.errors import ConfigError
from tests.conformance.engines import ENGINES, Models
from tests.support.toy_model import SHARE_UNIT, ToyCache, ToyModel

MADE: dict[str, Models] = {name: make() for name, make in ENGINES.items()}
PLENTY = 10**8
BLOCK_BYTES = 16 * SHARE_UNIT  # of the toy


def sharing(name: str, max_bytes: int = PLENTY) -> tuple[CachedStepEngine, PrefixCache, int]:
    """An engine with a prefix cache, and the positions of a block."""
    model = MADE[name].target
    engine = CachedStepEngine(model)
    assert isinstance(model, SharingModel)
    return engine, engine.share_prefixes(max_bytes), model.share_unit


def decode(engine: CachedStepEngine, seq: SeqHandle, drafts: Sequence[Sequence[int]]) -> list[FloatArray]:
    """The rows of each draft, whose first half is kept, the target's own greedy token next."""
    while engine.prefill(seq, 7):
        pass
    found = []
    for tokens in drafts:
        (scores,) = engine.score([(seq, Draft.chain(tokens, "t"))])
        found.append(scores.logits)
        kept = len(tokens) // 2
        engine.commit(seq, Verdict(tuple(range(kept)), int(scores.logits[kept].argmax()), "recovered"))
    return found


drafts = st.lists(st.lists(st.integers(0, 47), max_size=4), min_size=1, max_size=3)
texts = st.lists(st.integers(0, 1), min_size=1, max_size=60)  # two tokens: beginnings repeat


@pytest.mark.parametrize("name", ENGINES)
@settings(max_examples=25)
@given(prompts=st.lists(texts, min_size=1, max_size=6), drafts=drafts, blocks=st.integers(0, 6))
def test_logits_do_not_depend_on_what_was_kept(
    name: str, prompts: list[list[int]], drafts: list[list[int]], blocks: int
) -> None:
    """Bit for bit, whatever was read before and however little room there is."""
    engine, prefixes, unit = sharing(name)
    probe = engine.open([1] * (unit + 1), unit + 1, "probe")
    engine.prefill(probe, unit)
    block = prefixes.nbytes
    engine.close(probe)
    prefixes.clear()
    prefixes.shrink(blocks * block)
    plain = CachedStepEngine(MADE[name].target)
    for prompt in prompts:
        seq, reference = engine.open(prompt, 90, "a"), plain.open(prompt, 90)
        for rows, expected in zip(decode(engine, seq, drafts), decode(plain, reference, drafts), strict=True):
            np.testing.assert_array_equal(rows, expected)
        assert (seq.committed, seq.cache.length) == (reference.committed, reference.cache.length)
        engine.close(seq)
        assert prefixes.nbytes <= blocks * block


class OffByOne(PrefixCache):
    """The broken twin: a block is kept under the tokens of the block after it."""

    def _keys(self, tokens: Sequence[int] | IntArray) -> list[bytes]:
        return super()._keys(list(tokens)[1:])


@pytest.mark.parametrize("name", ENGINES)
def test_a_cache_block_under_another_ones_key_is_noticed(name: str) -> None:
    engine, _, unit = sharing(name)
    first, second = [3] * (2 * unit + 1), [4, *[3] * (2 * unit)]

    def logits() -> tuple[FloatArray, int]:
        for prompt in (first, second):
            seq = engine.open(prompt, 90, "a")
            taken = seq.committed
            rows = decode(engine, seq, [[]])[0]
            engine.close(seq)
        return rows, taken

    expected, taken = logits()
    assert taken == 0
    engine.prefixes = OffByOne(MADE[name].target, PLENTY)
    found, taken = logits()
    assert taken
    assert (found != expected).any()


@pytest.mark.parametrize("name", ENGINES)
def test_a_second_request_computes_only_what_is_new(name: str) -> None:
    engine, prefixes, unit = sharing(name)
    system = [*range(3 * unit - 2)]
    first = engine.open([*system, 1, 2, 3, 4], 90, "a")
    assert first.committed == 0
    decode(engine, first, [[5, 6, 7, 8]])
    answered = [*first.text]
    second = engine.open([*system, 1, 2, 9], 90, "a")  # while the first still runs
    assert (second.committed, second.pending.tolist()) == (3 * unit, [])
    third = engine.open([*system, 9, 9, 9], 90, "a")
    assert third.committed == 2 * unit
    engine.close(first)
    follow_up = engine.open([*answered, *range(unit)], 90, "a")
    assert follow_up.committed == (len(answered) // unit) * unit
    assert prefixes.hit_tokens == 3 * unit + 2 * unit + follow_up.committed
    assert (
        prefixes.query_tokens
        == 3 * unit + 1 + 3 * unit + 3 * unit + follow_up.committed + len(answered) % unit + unit - 1
    )


@pytest.mark.parametrize("name", ENGINES)
def test_samples_opened_together_share_what_the_first_computes(name: str) -> None:
    engine, _, unit = sharing(name)
    prompt = [*range(2 * unit + 3)]
    seqs = [engine.open(prompt, 90, "a") for _ in range(3)]
    engine.score([], [(seqs[0], unit + 1)])
    engine.score([], [(seqs[0], 1), (seqs[1], 2)])
    assert [seq.committed for seq in seqs] == [unit + 2, unit + 2, 0]
    engine.score([], [(seqs[0], 100)])
    engine.score([], [(seqs[1], 1), (seqs[2], 1)])
    assert [seq.committed for seq in seqs] == [2 * unit + 2, 2 * unit + 1, 2 * unit + 1]
    expected = decode(MADE[name].engine(), MADE[name].engine().open(prompt, 90), [[1]])  # type: ignore[arg-type]
    for seq in seqs:
        np.testing.assert_array_equal(decode(engine, seq, [[1]])[0], expected[0])


@pytest.mark.parametrize("name", ENGINES)
def test_namespaces_share_nothing(name: str) -> None:
    engine, prefixes, unit = sharing(name)
    prompt = [*range(2 * unit + 1)]
    for namespace in ("a", None, "b", "a"):
        seq = engine.open(prompt, 90, namespace)
        assert seq.committed == (2 * unit if namespace == "a" and len(prefixes) else 0)
        engine.prefill(seq, 100)
        engine.close(seq)
    assert len(prefixes) == 4


@pytest.mark.parametrize("name", ENGINES)
def test_what_was_never_committed_is_not_kept(name: str) -> None:
    """A request may end in the middle of a step, its draft still in the cache."""
    engine, prefixes, unit = sharing(name)
    seq = engine.open([1, 2], 90, "a")
    engine.prefill(seq, 9)
    engine.score([(seq, Draft.chain([3] * (2 * unit), "t"))])
    engine.close(seq)
    assert len(prefixes) == 0


def test_the_prompts_scores_are_computed_whatever_is_kept() -> None:
    engine, _, unit = sharing("toy")
    prompt = [*range(3 * unit)]
    engine.prefill(engine.open(prompt, 90, "a"), 100)
    seq = engine.open(prompt, 90)
    assert len(engine.prefill_scores(seq, 100)) == len(prompt) - 1


def test_an_engine_that_cannot_share_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be shared"):
        PrefixCache(object(), 1)


class Recency(RuleBasedStateMachine):
    """Against a list of prefixes: which are kept, in what order they go, how much room they take."""

    def __init__(self) -> None:
        super().__init__()
        self.model = ToyModel(48, 256)
        self.limit = 5 * BLOCK_BYTES
        self.prefixes = PrefixCache(self.model, self.limit)
        self.kept: list[tuple[str, tuple[int, ...]]] = []  # the least recently used first

    def blocks(self, text: Sequence[int]) -> list[tuple[int, ...]]:
        return [tuple(text[:end]) for end in range(SHARE_UNIT, len(text) + 1, SHARE_UNIT)]

    def use(self, namespace: str, found: Sequence[tuple[int, ...]]) -> None:
        entries = [(namespace, prefix) for prefix in found]
        self.kept = [entry for entry in self.kept if entry not in entries] + entries[::-1]

    def known(self, namespace: str, text: Sequence[int]) -> list[tuple[int, ...]]:
        found = []
        for prefix in self.blocks(text):
            if (namespace, prefix) not in self.kept:
                break
            found.append(prefix)
        return found

    def filled(self, text: Sequence[int]) -> Cache:
        cache = ToyCache(256)
        tokens, positions = cache.slots
        tokens[: len(text)], positions[: len(text)] = text, np.arange(len(text))
        cache.length = len(text)
        return cache

    @rule(namespace=st.sampled_from("ab"), text=st.lists(st.integers(0, 1), max_size=6 * SHARE_UNIT))
    def keep(self, namespace: str, text: list[int]) -> None:
        self.prefixes.keep(self.filled(text), text, namespace)
        found = self.known(namespace, text)
        self.use(namespace, found)
        for prefix in self.blocks(text)[len(found) :]:
            if len(self.kept) == 5:
                if self.kept[0] in [(namespace, p) for p in found]:
                    break
                del self.kept[0]
            found.append(prefix)
            self.kept.append((namespace, prefix))
        self.use(namespace, found)

    @rule(
        namespace=st.sampled_from("ab"),
        text=st.lists(st.integers(0, 1), max_size=6 * SHARE_UNIT),
        data=st.data(),
    )
    def take(self, namespace: str, text: list[int], data: st.DataObject) -> None:
        held = data.draw(st.integers(0, len(text)))
        cache = self.filled(text[:held])
        found = self.known(namespace, text)
        assert self.prefixes.known(text, namespace) == len(found) * SHARE_UNIT
        self.use(namespace, found)
        taken = self.prefixes.take(cache, text, namespace)
        assert taken == max(0, len(found) * SHARE_UNIT - held)
        assert isinstance(cache, ToyCache)
        tokens, positions = cache.slots
        assert tokens[: cache.length].tolist() == text[: cache.length]
        assert positions[: cache.length].tolist() == list(range(cache.length))

    @invariant()
    def agrees(self) -> None:
        assert len(self.prefixes) == len(self.kept)
        assert self.prefixes.nbytes == len(self.kept) * BLOCK_BYTES <= self.limit
        for namespace, prefix in self.kept:
            assert self.known(namespace, prefix) == self.blocks(prefix), "a parent outlives its children"


TestRecency = Recency.TestCase
TestRecency.settings = settings(max_examples=60, stateful_step_count=30)
