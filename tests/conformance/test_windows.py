"""Texts that are much longer than the sliding windows of target and draft: speculation changes nothing."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from outrider.decoding.request import Request
from outrider.decoding.sampling.params import SamplingParams
from outrider.drafters.base import Drafter
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.engines.step import CachedStepEngine
from tests.conformance.drafters import SCRIPTS, ScriptedDrafter
from tests.conformance.engines import Models, native_models
from tests.conformance.harness import EOS, Letters, Output, mixed, run, visible
from tests.support.models import Dims

LENGTH, CONTEXT = 260, 420  # of an answer; the windows hold 12 positions, and 128 for rollbacks
PROMPTS = [tuple(3 + i * i % 40 for i in range(150)), (4, 5, 6)]


@cache
def models() -> Models:
    pattern: dict[str, Any] = {"attention.sliding_window_pattern": 2}
    return native_models("gemma3", Dims(window=12, context=512), **pattern)


def batch(temperature: float, namespace: str | None = None) -> list[Request]:
    params = SamplingParams(max_tokens=LENGTH, temperature=temperature, ignore_eos=True)
    return [
        Request(str(i), prompt, params, EOS, Letters(), seed=1000 + i, namespace=namespace)
        for i, prompt in enumerate(PROMPTS)
    ]


@cache
def plain(temperature: float) -> dict[str, Output]:
    return run(models().engine(), None, batch(temperature), max_context=CONTEXT)


def make(name: str, temperature: float) -> Drafter:
    if name in SCRIPTS:
        expected = plain(temperature)
        truth = {str(i): [*prompt, *expected[str(i)].tokens] for i, prompt in enumerate(PROMPTS)}
        return ScriptedDrafter(name, SCRIPTS[name], truth, models().target.vocab_size)
    if name == "short context":  # ends before the target's: its middle is left out again and again
        return DraftModelDrafter(models().draft, max_context=200)
    model = DraftModelDrafter(models().draft, chunk=64)
    return mixed(model) if name == "mixed" else model


@pytest.mark.grid(4)
@pytest.mark.parametrize(("length", "temperature"), [(3, 0.8), (60, 0.0), (60, 0.8)])
@pytest.mark.parametrize("name", ["draft_model", "short context", "mixed", "right_then_wrong"])
def test_speculation_changes_nothing_past_the_windows(name: str, length: int, temperature: float) -> None:
    found = run(
        models().engine(), make(name, temperature), batch(temperature), length=length, max_context=CONTEXT
    )
    assert visible(found) == visible(plain(temperature))
    assert all(len(output.tokens) == LENGTH for output in found.values())
    assert any("accepted" in output.kinds for output in found.values())


def test_a_prompt_is_shared_after_the_windows_have_passed_it() -> None:
    """By the target and by the draft model, whose caches hold its end no longer when the request ends."""
    engine, drafter = CachedStepEngine(models().target), DraftModelDrafter(models().draft)
    kept = [engine.share_prefixes(10**8), drafter.share_prefixes(10**8)]
    for _ in range(2):
        found = run(engine, drafter, batch(0.8, "a"), max_context=CONTEXT)
        assert visible(found) == visible(plain(0.8))
        for prefixes in kept:
            assert prefixes.known(PROMPTS[0][:-1], "a") == 144
    assert all(prefixes.hit_tokens >= 144 for prefixes in kept)
