"""Heads that come with the package: each is its target's, drafts what that writes, and changes no text."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.bench import workloads
from outrider.decoding.sampling.params import SamplingParams
from outrider.llm import LLM
from outrider.models.eagle3.open import open_head
from outrider.models.open import open_model
from outrider.models.sources.bundled import BUNDLED
from outrider.models.sources.catalog import CATALOG
from outrider.models.sources.references import resolve
from tests.support.real import real_model

MOST_BYTES = 12_000_000  # of the package
PROMPTS = [workloads.load(kind)[0].prompt for kind in ("chat", "code", "summary")]


@pytest.mark.parametrize("name", BUNDLED)
def test_its_file_is_found_by_name_and_small(name: str, tmp_path: Path) -> None:
    path = resolve(name, offline=True, cache_dir=tmp_path)
    assert path == BUNDLED[name].path
    assert path.stat().st_size <= MOST_BYTES
    assert BUNDLED[name].target in CATALOG
    assert {tensor.type for tensor in open_head(path).source.tensors.values()} == {"F32", "Q4_0"}  # type: ignore[union-attr]


@pytest.fixture(scope="module", params=BUNDLED)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    """(target, head)"""
    target = real_model(BUNDLED[request.param].target)
    if target is None:
        pytest.skip(f"the model {BUNDLED[request.param].target} is not here")
    return str(target), str(request.param)


def test_it_fits_its_target(pair: tuple[str, str]) -> None:
    head = open_head(BUNDLED[pair[1]].path)
    assert head is not None
    assert head.made_for == "" or head.made_for == open_model(Path(pair[0])).display_name
    whole = open_model(Path(pair[0]))
    assert head.for_target(whole).whole_prompt < whole.architecture.max_positions


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_its_drafts_are_accepted_and_change_no_text(pair: tuple[str, str], temperature: float) -> None:
    target, name = pair
    params = SamplingParams(temperature=temperature, max_tokens=96, seed=1)
    chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    with LLM(target, speculative_config={"method": "none"}) as llm:
        plain = [output.outputs[0].token_ids for output in llm.chat(chats, params)]
    fixed = {"method": "eagle3", "model": name, "num_speculative_tokens": 3}
    with LLM(target, speculative_config=fixed) as llm:
        outputs = llm.chat(chats, params)
    assert [output.outputs[0].token_ids for output in outputs] == plain
    drafts = [output.outputs[0].metrics.drafts for output in outputs]
    mean = 1 + sum(d.num_accepted_tokens for d in drafts) / sum(d.num_drafts for d in drafts)
    assert mean > 1.5, "tokens a pass"
    with LLM(target, speculative_config={"method": "auto", "model": name}) as llm:
        assert [output.outputs[0].token_ids for output in llm.chat(chats, params)] == plain
