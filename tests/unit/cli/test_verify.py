"""`outrider verify` in-process, on toy models: claims hold for correct parts, and each broken part breaks its
claim."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider import pipeline
from outrider.cli.main import main
from outrider.decoding.sampling import randomness, rng
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.randomness import StepRandomness
from outrider.decoding.sampling.sampler import LazyDistribution, Sampler
from outrider.decoding.types import Draft, FloatArray, Verdict
from outrider.decoding.verifiers import block as verify_block
from outrider.decoding.verifiers import rejection as verify_rejection
from outrider.decoding.verifiers.coupled import CoupledVerifier
from outrider.drafters.ngram import NgramDrafter
from outrider.engines.base import Cache, EngineCaps, ForwardItem, LanguageModel, SeqHandle
from outrider.engines.step import CachedStepEngine
from outrider.models.source import ModelSource
from outrider.verify import enumeration, identity
from tests.conformance.test_broken_twins import KeepsTheWrongSlots, PositionsBySlot, SeesSiblings
from tests.conftest import load_toy, toy_target
from tests.support.toy_model import ToyCache, ToyModel

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _toys(monkeypatch: Patch, toy_engine: object) -> None:
    monkeypatch.setattr(enumeration, "TABLES", 3)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    rows = [("fox", "one", "the quick brown fox the quick"), ("self", "two", "def self, self, name self")]
    path.write_text("\n".join(json.dumps({"id": i, "workload": w, "prompt": p}) for i, w, p in rows), "utf-8")
    return path


@pytest.fixture
def verify(target_file: Path, prompts: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run `outrider verify -m TARGET …`; gives (status, stdout, stderr)."""

    def call(*args: str) -> tuple[int, str, str]:
        line = ["-m", str(target_file), "--prompts", str(prompts), "-n", "16", "--samples", "300", *args]
        status = main(["verify", *line])
        out, err = capsys.readouterr()
        return status, out, err

    return call


def test_everything_holds_on_sound_parts(verify: Any, draft_file: Path) -> None:
    status, out, err = verify("-md", str(draft_file), "--temps", "0,0.7,1", "--samples", "100", "--json")
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert document.keys() == {"claims", "held"}
    assert document["held"] is True
    for claim in document["claims"]:
        assert claim.keys() == {"claim", "held", "cases", "detail"}
        assert claim["held"] is True
        assert claim["cases"] > 0
    assert [(c["claim"], c["detail"].split(":")[0]) for c in document["claims"][2:]] == [
        ("distribution", rule) for rule in ("coupled", "rejection", "rejection", "block", "block")
    ]
    identity, bits = document["claims"][:2]
    assert (identity["claim"], bits["claim"]) == ("identity", "bits")
    # 2 prompts x (2 + 2 + 2 seeds): 12 requests, by 2 drafters x 4 lengths, auto and 2 batches; 4 of them are
    # greedy: by 2 drafters, auto and a batch, under two more rules.
    assert identity["cases"] == 12 * (2 * 4 + 1 + 2) + 4 * 2 * 4
    assert "95% power" in document["claims"][2]["detail"]


def test_the_lines(verify: Any) -> None:
    status, out, err = verify(*COUPLED, "--seeds", "1", "--draft", "4")
    assert (status, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines()] == [
        ["held", "identity"],
        ["held", "bits"],
        ["held", "distribution"],
    ]
    assert "95% confidence" in out


def test_a_rule_without_a_greedy_case_leaves_identity_out(verify: Any) -> None:
    status, out, err = verify("--verification", "block", "--temps", "1", "--json")
    assert status == 0
    assert [c["claim"] for c in json.loads(out)["claims"]] == ["bits", "distribution", "distribution"]
    assert "identity is left out" in err


# --- Broken parts ------------------------------------------------------------------------------------


def loading(kind: Callable[..., ToyModel], monkeypatch: Patch) -> None:
    """Have the target be a broken model."""

    def load(source: ModelSource, threads: int | None) -> LanguageModel:
        if source.path.name.startswith("draft"):
            return load_toy(source, threads)
        return toy_target(source, kind)

    monkeypatch.setattr(pipeline, "load_native", load)


class DriftsByWidth(ToyModel):
    """A batch-variant engine: rounding differs with the number of tokens in the pass."""

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        wide = sum(len(item.tokens) for item in items) > 4
        return [np.nextafter(rows, np.float32(9e9)) if wide else rows for rows in super().forward(items)]


class DriftsMuch(ToyModel):
    """The same, by so much that tokens flip."""

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        found = super().forward(items)
        return [np.roll(rows, 1, axis=1) if len(rows) > 1 else rows for rows in found]


class DriftsByBatch(ToyModel):
    """Rows depend on the other sequences in the pass."""

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        found = super().forward(items)
        return [np.roll(rows, 1, axis=1) for rows in found] if len(items) > 1 else found


class DriftsByPrefill(ToyModel):
    """A prefill of more than one token writes the last one's position wrongly."""

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        found = super().forward(items)
        for item in items:
            if len(item.tokens) > 1 and not len(item.rows):
                assert isinstance(item.cache, ToyCache)
                item.cache.slots[1][item.cache.length - 1] += 1
        return found


class WrongSlots(ToyModel):
    def new_cache(self, capacity: int) -> Cache:
        return KeepsTheWrongSlots(capacity)


def model(kind: Callable[..., ToyModel]) -> Callable[[Patch], None]:
    return lambda monkeypatch: loading(kind, monkeypatch)


def forgets_the_rollback(monkeypatch: Patch) -> None:
    def commit(self: CachedStepEngine, seq: SeqHandle, verdict: Verdict) -> None:
        seq.committed = seq.cache.length
        seq.anchor = verdict.next_token

    monkeypatch.setattr(CachedStepEngine, "commit", commit)


def breaks_its_own_invariant(monkeypatch: Patch) -> None:
    def commit(self: CachedStepEngine, seq: SeqHandle, verdict: Verdict) -> None:
        seq.committed += 1 + len(verdict.path)
        seq.anchor = verdict.next_token

    monkeypatch.setattr(CachedStepEngine, "commit", commit)


def accepts_everything(monkeypatch: Patch) -> None:
    right = CoupledVerifier.verify

    def verify(self: Any, draft: Draft, scores: Any, sampler: Any, context: Any) -> Verdict:
        verdict = right(self, draft, scores, sampler, context)
        return Verdict(tuple(range(len(draft))), verdict.next_token, "bonus")

    monkeypatch.setattr(CoupledVerifier, "verify", verify)


def drafter_writes_into_the_text(monkeypatch: Patch) -> None:
    right = NgramDrafter.propose

    def propose(self: Any, jobs: Any) -> list[Draft]:
        drafts = right(self, jobs)
        for job, draft in zip(jobs, drafts, strict=True):
            if len(draft):
                job.context.append(int(draft.tokens[0]))
        return drafts

    monkeypatch.setattr(NgramDrafter, "propose", propose)


def noise_with_a_state(monkeypatch: Patch) -> None:
    random = np.random.default_rng(5)

    def token(self: Sampler, logits: Any, context: Any) -> int:
        if self.params.temperature == 0:
            return int(logits[: self.vocab_size].argmax())
        ids, probs = self.distribution(logits, context)
        return int(random.choice(ids, p=probs))

    monkeypatch.setattr(Sampler, "token", token)


def noise_that_is_too_quiet(monkeypatch: Patch) -> None:
    """Sampling is repeatable, and prefers the likely tokens more than it should."""
    right = Sampler.token
    monkeypatch.setattr(Sampler, "token", lambda self, logits, context: right(self, 1.4 * logits, context))


def uniforms_that_are_not(monkeypatch: Patch) -> None:
    monkeypatch.setattr(randomness, "uniforms", lambda *args: rng.uniforms(*args) ** 1.5)


def drafts_from_another_distribution(monkeypatch: Patch) -> None:
    """The draft's likeliest token, passed off as a draw."""
    monkeypatch.setattr(
        StepRandomness,
        "draft_token",
        lambda self, distribution, node: int(distribution.ids[distribution.probs.argmax()]),
    )


def recovers_from_the_target(monkeypatch: Patch) -> None:
    for module in (verify_rejection, verify_block):
        monkeypatch.setattr(module, "residual", lambda target, draft, scale=1.0: target)


def forgets_top_k(monkeypatch: Patch) -> None:
    """The rules' distribution has tokens that the request's filters rule out."""
    right = Sampler.distribution

    def distribution(self: Sampler, logits: Any, context: Any) -> Any:
        params = SamplingParams(temperature=self.params.temperature)
        return right(Sampler(params, self.vocab_size), logits, context)

    def lazy_distribution(self: Sampler, logits: Any, context: Any) -> LazyDistribution:
        known = distribution(self, logits, context)
        return LazyDistribution(lambda: known)

    monkeypatch.setattr(Sampler, "distribution", distribution)
    monkeypatch.setattr(Sampler, "lazy_distribution", lazy_distribution)


COUPLED = ("--verification", "coupled", "--temps", "0,1")
GREEDY = ("--verification", "coupled", "--temps", "0", "--seeds", "1")
RULES = [
    ("--verification", rule, "--temps", "0,1", "--seeds", "1", "--draft", "4")
    for rule in ("rejection", "block")
]


@pytest.mark.grid(4)
@pytest.mark.parametrize(
    ("broken", "args", "claims"),
    [
        (model(DriftsByWidth), GREEDY, {"bits"}),
        (model(DriftsMuch), GREEDY, {"identity", "bits"}),
        (model(DriftsByBatch), GREEDY, {"identity", "bits"}),
        (model(DriftsByPrefill), GREEDY, {"bits"}),
        (model(WrongSlots), GREEDY, {"bits"}),
        (model(SeesSiblings), GREEDY, {"bits"}),
        (model(PositionsBySlot), GREEDY, {"bits"}),
        (forgets_the_rollback, COUPLED, {"identity", "bits", "distribution"}),
        (accepts_everything, COUPLED, {"identity", "distribution"}),
        (drafter_writes_into_the_text, COUPLED, {"identity"}),
        (noise_with_a_state, COUPLED, {"identity"}),
        (noise_that_is_too_quiet, COUPLED, {"distribution"}),
        *((uniforms_that_are_not, rule, {"distribution"}) for rule in RULES),
        *((recovers_from_the_target, rule, {"distribution"}) for rule in RULES),
        *((forgets_top_k, rule, {"distribution"}) for rule in RULES),
    ],
)
def test_a_broken_part_breaks_its_claim(
    verify: Any, broken: Callable[[Patch], None], args: Sequence[str], claims: set[str], monkeypatch: Patch
) -> None:
    broken(monkeypatch)
    status, out, _ = verify("--json", *args)
    document = json.loads(out)
    assert {c["claim"] for c in document["claims"] if not c["held"]} == claims
    assert (status, document["held"]) == (1, False)


@pytest.mark.parametrize("rule", RULES)
def test_a_draft_that_misstates_its_distribution_breaks_it(
    verify: Any, draft_file: Path, rule: Sequence[str], monkeypatch: Patch
) -> None:
    drafts_from_another_distribution(monkeypatch)
    status, out, _ = verify("-md", str(draft_file), *rule)
    assert status == 1
    assert "not the target's distribution" in out
    assert "enumerated: the probabilities of texts are off from the target's by at most" in out


def test_a_broken_draft_cache_breaks_nothing(verify: Any, draft_file: Path, monkeypatch: Patch) -> None:
    class Forgetful(ToyCache):
        def truncate(self, length: int) -> None:
            super().truncate(min(length + 1, self.length))

    class Draft(ToyModel):
        def new_cache(self, capacity: int) -> Cache:
            return Forgetful(capacity)

    def load(source: ModelSource, threads: int | None) -> LanguageModel:
        if source.path.name.startswith("draft"):
            return toy_target(source, Draft)
        return load_toy(source, threads)

    monkeypatch.setattr(pipeline, "load_native", load)
    status, out, _ = verify("-md", str(draft_file), *COUPLED, "--samples", "100")
    assert status == 0, out


def test_a_difference_is_reported_in_full(verify: Any, monkeypatch: Patch) -> None:
    model(DriftsMuch)(monkeypatch)
    status, out, _ = verify(*GREEDY, "--draft", "3")
    assert status == 1
    line = out.splitlines()[0]
    for words in (
        "broken",
        "fox, temperature 0, seed 0 (coupled, ngram draft of 3) at output token",
        "instead of",
    ):
        assert words in line
    assert float(line.split("top-2 logit gap there is ")[1].split(";")[0]) > 0


def test_an_engine_that_fails_half_way_breaks_the_claims(verify: Any, monkeypatch: Patch) -> None:
    """Plain decoding of one request still runs; what it says is not looked at."""

    class Fails(ToyModel):
        def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
            if any(len(item.rows) > 1 for item in items):
                raise RuntimeError("too wide for me")
            return super().forward(items)

    model(Fails)(monkeypatch)
    status, out, _ = verify(*GREEDY, "--json")
    assert status == 1
    identity, bits = json.loads(out)["claims"]
    assert (identity["held"], bits["held"]) == (False, False)
    assert "failed: RuntimeError('too wide for me')" in identity["detail"]
    assert "too wide" in bits["detail"]


@pytest.mark.parametrize(
    ("kind", "held", "words"),
    [(DriftsByWidth, True, "0 argmax flips"), (DriftsMuch, False, "argmax flips, first after")],
)
def test_an_engine_that_promises_no_bits(
    verify: Any, kind: type[ToyModel], held: bool, words: str, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(kind, "caps", EngineCaps(tree_attention=False, exact_bits=False))
    model(kind)(monkeypatch)
    _, out, _ = verify(*GREEDY, "--json")
    bits = json.loads(out)["claims"][1]
    assert bits["held"] is held
    assert "does not promise bits" in bits["detail"]
    assert words in bits["detail"]
    assert "trees" not in bits["detail"]


# --- Input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--temps", "0,warm"], ["--temps", "'0,warm'"]),
        (["--temps", "nan"], ["--temps", "nan"]),
        (["--temps", "-1"], ["--temps", "-1"]),
        (["--temps", "inf"], ["--temps", "inf"]),
        (["--seeds", "0"], ["--seeds", "0"]),
        (["-n", "0"], ["-n", "0"]),
        (["--samples", "-1"], ["--samples", "-1"]),
        (["--limit", "0"], ["--limit", "0"]),
        (["--prompts", "no-such"], ["'no-such'"]),
        (["--spec", "none"], ["nothing to verify"]),
        (["--spec", "ngarm"], ["did you mean 'ngram'"]),
        (["--verification", "bock"], ["did you mean 'block'"]),
        (["--draft", "0"], ["--draft"]),
        (["-md", "absent.gguf"], ["absent.gguf"]),
        (["-m", "absent.gguf"], ["absent.gguf"]),
        (["--endpoint", "http://127.0.0.1:1"], ["--against"]),
        (["--chat"], ["--chat", "--endpoint"]),
        (["--timeout", "3"], ["--timeout", "--endpoint"]),
        (["--temps", "0", "--prompt-lookup-max", "90"], ["nothing was drafted"]),
    ],
)
def test_bad_input_is_status_2_and_one_line(verify: Any, args: list[str], words: list[str]) -> None:
    status, out, err = verify(*args)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


def test_a_model_or_endpoints_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify"]) == 2
    assert "--endpoint" in capsys.readouterr().err


def test_without_drafts_the_distribution_is_not_tested(verify: Any, tmp_path: Path) -> None:
    """Its own prompts repeat themselves enough for this drafter, those of the distribution do not."""
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"id": "a", "workload": "w", "prompt": "xyzzy" * 9}), "utf-8")
    flags = ["--prompt-lookup-max", "14", "--prompt-lookup-min", "14"]
    status, out, err = verify(*COUPLED, *flags, "--prompts", str(path), "--raw", "--json")
    assert status == 0
    assert [c["claim"] for c in json.loads(out)["claims"]] == ["identity", "bits"]
    assert "distribution is not tested" in err


def test_ctrl_c_is_tidy(verify: Any, monkeypatch: Patch) -> None:
    right, seen = Sampler.token, []

    def token(self: Sampler, logits: Any, context: Any) -> int:
        seen.append(0)
        if len(seen) == 50:
            signal.raise_signal(signal.SIGINT)
        return right(self, logits, context)

    monkeypatch.setattr(Sampler, "token", token)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        assert verify(*COUPLED) == (130, "", "")
    finally:
        signal.signal(signal.SIGINT, before)


def test_prompts_are_limited_by_workload(verify: Any, tmp_path: Path, monkeypatch: Patch) -> None:
    path = tmp_path / "many.jsonl"
    rows = [{"id": f"{w}{i}", "workload": w, "prompt": f"the the {w} {i}"} for i in range(3) for w in "ab"]
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    names: list[str] = []
    right = identity.cases

    def cases(prompts: Mapping[str, Any], *rest: Any) -> list[identity.Case]:
        names.extend(prompts)
        return right(prompts, *rest)

    monkeypatch.setattr(identity, "cases", cases)
    status, _, _ = verify("--prompts", str(path), "--limit", "2", *GREEDY, "--raw")
    assert status == 0
    assert names == ["a0", "b0", "a1", "b1"]
