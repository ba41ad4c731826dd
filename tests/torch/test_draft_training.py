"""`outrider train` of a draft model: the forward of training, what is learned, and the files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from outrider.decoding.sampling.params import SamplingParams  # noqa: E402
from outrider.engines.base import ForwardItem  # noqa: E402
from outrider.engines.native.model import NativeModel  # noqa: E402
from outrider.engines.torch.weights import load_weights  # noqa: E402
from outrider.errors import (  # noqa: E402
    ConfigError,
    InsufficientMemoryError,
    UnsupportedModelError,
    VocabularyMismatchError,
)
from outrider.llm import LLM  # noqa: E402
from outrider.models.families import FAMILIES  # noqa: E402
from outrider.models.formats.dequantize import dequantize  # noqa: E402
from outrider.models.open import open_model  # noqa: E402
from outrider.models.source import ModelSource, Tensor  # noqa: E402
from outrider.training import draft_costs, payoff  # noqa: E402
from outrider.training.draft import Draft  # noqa: E402
from outrider.training.draft_lesson import DraftLesson, Example, Examples, divergence, loss_of  # noqa: E402
from outrider.training.draft_run import check_trainable  # noqa: E402
from outrider.training.probabilities import ProbabilityStore, record_of  # noqa: E402
from outrider.training.progress import Evaluation  # noqa: E402
from outrider.training.settings import DRAFT_DEFAULTS, Settings  # noqa: E402
from outrider.training.texts import Text  # noqa: E402
from outrider.training.trainer import Trainer  # noqa: E402
from tests.support.models import VOCAB_SIZE, Dims, tiny_gguf, tiny_hf  # noqa: E402
from tests.torch.support import CPU, relative_error, source, trained_by  # noqa: E402

TEXT = np.random.default_rng(0).integers(3, VOCAB_SIZE, 40)


def draft_of(opened: ModelSource, longest: int = 64, *, rank: int = 0, mixed: bool = False) -> Draft:
    weights = load_weights(opened, CPU, torch.float32)
    return Draft(opened.architecture, weights, longest, rank=rank, mixed=mixed)


def engine_logits(opened: ModelSource, ids: Any) -> Any:
    model = NativeModel.load(opened, threads=1, weights_cache=False)
    everything = np.arange(len(ids), dtype=np.int32)
    item = ForwardItem(model.new_cache(64), np.asarray(ids, np.int32), everything - 1, everything)
    return model.forward([item])[0]


def held_in_f32(opened: ModelSource) -> ModelSource:
    return replace(opened, architecture=replace(opened.architecture, kv_type="f32"))


# --- The forward of training ----------------------------------------------------------------------


@pytest.mark.parametrize("form", ["folder", "gguf"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_forward_is_the_engines(tmp_path: Path, family: str, form: str) -> None:
    opened = held_in_f32(source(tmp_path, family, form))
    draft = draft_of(opened)
    found = draft.logits(torch.from_numpy(TEXT), 7)
    assert relative_error(found.detach().numpy(), engine_logits(opened, TEXT)[7:]) < 1e-4
    found.square().mean().backward()
    for name, weight in draft.parameters.items():
        assert weight.grad is not None and weight.grad.abs().sum() > 0, name  # noqa: PT018
    assert draft.weights.embedding.grad is None
    assert draft.weights.output.grad is None


@pytest.mark.parametrize("family", ["qwen2", "gemma3"])
def test_gradients_are_differences(tmp_path: Path, family: str) -> None:
    """Of the loss, in a random direction."""
    draft = draft_of(source(tmp_path, family))
    tokens = torch.from_numpy(TEXT[:12])
    generator = torch.Generator().manual_seed(0)

    def value() -> Any:
        return draft.logits(tokens, 3).double().logsumexp(-1).square().mean()

    value().backward()
    wanted = 0.0
    moves = []
    for weight in draft.parameters.values():
        move = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        wanted += float((weight.grad * move).sum())
        moves.append((weight, move))
    ends = []
    with torch.no_grad():
        for step in (1e-3, -1e-3):
            for weight, move in moves:
                weight.add_(step * move)
            ends.append(float(value()))
            for weight, move in moves:
                weight.sub_(step * move)
    assert (ends[0] - ends[1]) / 2e-3 == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize("family", ["qwen2", "gemma3", "phi3"])
def test_gradients_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    """Of matrices and norms of the first layer and the last norm, on the same folder."""
    transformers = pytest.importorskip("transformers")
    draft = draft_of(source(tmp_path, family))
    other = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", dtype=torch.float32, attn_implementation="eager"
    )
    tokens = torch.from_numpy(TEXT[:24])
    mine, theirs = draft.logits(tokens, 5), other(tokens[None]).logits[0, 5:]
    assert relative_error(mine.detach().numpy(), theirs.detach().numpy()) < 1e-4
    for logits in (mine, theirs):
        logits.logsumexp(-1).square().mean().backward()
    layer = other.model.layers[0]
    pairs = {
        "blk.0.down": layer.mlp.down_proj,
        "blk.0.output": layer.self_attn.o_proj,
        "blk.0.attn_norm": layer.input_layernorm,
        "output_norm.weight": other.model.norm,
    }
    for name, part in pairs.items():
        found, wanted = draft.parameters[name].grad, part.weight.grad
        assert found is not None
        assert relative_error(found.numpy(), wanted.numpy()) < 1e-3, name


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "phi3"])
def test_products_of_bfloat16_are_close(tmp_path: Path, family: str) -> None:
    """To float32's logits, and so is the gradient; a sum of many products would be further off."""
    opened = source(tmp_path, family)
    tokens = torch.from_numpy(TEXT)
    found = []
    for mixed in (False, True):
        draft = draft_of(opened, mixed=mixed)
        logits = draft.logits(tokens, 7)
        logits.logsumexp(-1).square().mean().backward()
        found.append((logits.detach().numpy(), draft.parameters["blk.0.down"].grad.numpy()))
        assert logits.dtype == torch.float32
    (exact, gradient), (close, other) = found
    assert 1e-5 < relative_error(close, exact) < 0.05
    assert 1e-5 < relative_error(other, gradient) < 0.1


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gemma3"])
def test_a_change_of_low_rank_is_added_to_the_matrices(tmp_path: Path, family: str, mixed: bool) -> None:
    """At first it changes nothing; then the logits are those of the matrices that `arrays` gives."""
    opened = source(tmp_path, family)
    tokens = torch.from_numpy(TEXT)
    draft, plain = (draft_of(opened, rank=rank, mixed=mixed) for rank in (3, 0))
    np.testing.assert_array_equal(draft.logits(tokens, 7).detach(), plain.logits(tokens, 7).detach())
    assert {len(p.shape) for p in draft.parameters.values()} == {2}
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in draft.parameters.items():
            if name.endswith(".b"):
                weight.copy_(0.1 * torch.randn(weight.shape, generator=generator))
    changed = draft.arrays()
    assert {name for name, rows in changed.items() if rows.ndim != 2} == set()
    before = plain.arrays()
    for name, rows in changed.items():
        assert 1 <= np.linalg.matrix_rank(rows - before[name], tol=1e-4) <= 3, name
    loaded = {**opened.tensors} | {name: as_tensor(name, rows) for name, rows in changed.items()}
    wanted = draft_of(replace(opened, tensors=loaded), mixed=False).logits(tokens, 7)
    found = draft.logits(tokens, 7)
    assert relative_error(found.detach().numpy(), wanted.detach().numpy()) < (0.05 if mixed else 1e-4)
    assert relative_error(plain.logits(tokens, 7).detach().numpy(), wanted.detach().numpy()) > 0.1


def as_tensor(name: str, rows: Any) -> Tensor:
    return Tensor(name, "F32", rows.shape, np.ascontiguousarray(rows, np.float32).view(np.uint8).reshape(-1))


# --- The loss -------------------------------------------------------------------------------------


def example_of(logits: Any, kept: int) -> Example:
    """The records of a target with these logits, at all places of an answer."""
    order = torch.sort(logits, dim=-1, descending=True, stable=True).indices[:, :kept]
    shares = torch.softmax(logits, -1).gather(-1, order)
    return Example(torch.zeros(len(logits), dtype=torch.int64), 0, order, shares)


def test_the_loss_is_the_divergence_of_what_is_recorded() -> None:
    """Against float64 and its own sums: with all but one id on record it is the whole divergence."""
    generator = torch.Generator().manual_seed(0)
    target, draft = (3 * torch.randn(5, 20, generator=generator) for _ in range(2))
    p, q = (torch.softmax(each.double(), -1) for each in (target, draft))
    whole = (p * (p.log() - q.log())).sum(-1)
    np.testing.assert_allclose(divergence(draft, example_of(target, 19)), whole, rtol=1e-5)
    part = example_of(target, 4)
    known = [(p.gather(-1, part.ids), q.gather(-1, part.ids))]
    ((a, b),) = known
    rest = [1 - each.sum(-1) for each in (a, b)]
    wanted = (a * (a / b).log()).sum(-1) + rest[0] * (rest[0] / rest[1]).log()
    np.testing.assert_allclose(divergence(draft, part), wanted, rtol=1e-4)
    assert (wanted < whole).all()
    np.testing.assert_allclose(divergence(target, part), 0, atol=1e-5)


def test_ids_that_the_draft_lacks_count_with_the_rest() -> None:
    """The target's likeliest ids, of which the draft model has none but the first of 18."""
    generator = torch.Generator().manual_seed(1)
    target, draft = (3 * torch.randn(6, 20, generator=generator) for _ in range(2))
    target[:, 18:] += 4
    target[:, 3] += 20
    found = example_of(target, 5)
    foreign = found.ids >= 18
    assert foreign.any()
    masked = replace(
        found,
        ids=torch.where(foreign, found.ids[:, :1], found.ids),
        probs=found.probs.masked_fill(foreign, 0.0),
    )
    p, q = torch.softmax(target.double(), -1), torch.softmax(draft[:, :18].double(), -1)
    for row, value in enumerate(divergence(draft[:, :18], masked)):
        ids = [int(i) for i in found.ids[row] if i < 18]
        a, b = p[row, ids], q[row, ids]
        rest = (1 - a.sum(), 1 - b.sum())
        wanted = (a * (a / b).log()).sum() + rest[0] * (rest[0] / rest[1]).log()
        assert float(value) == pytest.approx(float(wanted), rel=1e-3)


def test_no_draft_is_infinitely_wrong() -> None:
    """A target that is sure, and a draft that is sure of another token."""
    target, draft = torch.zeros(1, 20), torch.zeros(1, 20)
    target[0, 3], draft[0, 5] = 200.0, 200.0
    part = example_of(target, 4)
    draft.requires_grad_()
    loss = divergence(draft, part)
    loss.sum().backward()
    assert 100 < float(loss.detach()) < 300
    assert torch.isfinite(draft.grad).all()
    assert float(draft.grad[0, 3]) == pytest.approx(-1)


# --- Training -------------------------------------------------------------------------------------

TARGET, SMALL = (
    Dims(layers=3, context=256),
    Dims(layers=2, hidden=32, heads=2, kv_heads=1, ffn=64, context=256),
)
WORDS = "the quick brown fox jumps over lazy dog and then other dogs jump return name for in if not none"
SETTINGS = Settings(
    data="self", tokens=1200, max_answer=32,
    **{**DRAFT_DEFAULTS, "epochs": 3, "rate": 1e-2, "batch": 2, "steps": 3, "rank": 0},
)  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A target, a draft model in two formats, prompts."""
    folder = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(0)
    prompts = folder / "prompts.txt"
    prompts.write_text("\n".join(" ".join(rng.choice(WORDS.split(), 4)) for _ in range(32)))
    return {
        "target": tiny_gguf(folder / "target.gguf", dims=TARGET, tied=False),
        "gguf": tiny_gguf(folder / "draft.gguf", arch="qwen2", dims=SMALL, tied=False, seed=3, types="Q8_0"),
        "folder": tiny_hf(folder / "draft", arch="qwen3", dims=SMALL, seed=4, dtype="BF16"),
        "prompts": prompts,
    }


@pytest.fixture(autouse=True)
def no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """What passes cost is told of real models only."""
    made = payoff.Payoff(type("Flat", (), {"at": lambda self, n: 1.0})(), 0.1)
    monkeypatch.setattr(payoff, "of_draft", lambda *_: made)
    monkeypatch.setattr(draft_costs, "SECONDS", 0.0)


def train(
    files: dict[str, Path],
    folder: Path,
    *,
    draft: str = "gguf",
    updates: int | None = None,
    settings: Settings = SETTINGS,
    given: frozenset[str] = frozenset({"data"}),
) -> tuple[bool, list[str]]:
    """(whether it is done, what it said). updates: of the weights, until it is interrupted."""
    return trained_by(
        updates, model=str(files["target"]), draft=str(files[draft]), folder=folder, settings=settings,
        given=given, data=(str(files["prompts"]),),
    )  # fmt: skip


def settings_of(rank: int) -> Settings:
    """A change of low rank learns less with each update."""
    return replace(SETTINGS, rank=rank, rate=3e-2, epochs=8) if rank else SETTINGS


@pytest.fixture(scope="module", params=[0, 8], ids=["all weights", "low rank"])
def rank(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def trained(files: dict[str, Path], rank: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "draft"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(payoff, "of_draft", lambda *_: None)
        patch.setattr(draft_costs, "SECONDS", 0.0)
        assert train(files, folder, settings=settings_of(rank))[0]
    return folder


def history(folder: Path) -> list[Evaluation]:
    found = torch.load(folder / "run" / "checkpoint.pt", weights_only=True)
    return [Evaluation.read(each) for each in found["state"]["history"]]


def test_it_learns(trained: Path) -> None:
    before, *later = history(trained)
    assert before.held.likeness is not None
    assert later[-1].held.likeness is not None
    assert before.held.likeness.agreement < 0.1
    assert later[-1].held.likeness.agreement > before.held.likeness.agreement + 0.2
    assert later[-1].held.likeness.mean_overlap > before.held.likeness.mean_overlap + 0.1
    assert later[-1].loss < 0.8 * later[0].loss


def test_the_engine_runs_what_was_trained(trained: Path, files: dict[str, Path], rank: int) -> None:
    """The file has the weights of the checkpoint, as far as its types hold them, and all else as it was."""
    opened, old = open_model(trained), open_model(files["gguf"])
    assert opened.display_name == "Tiny distilled for Tiny"
    assert {t.type for t in opened.tensors.values()} == {"Q8_0", "F32"}
    np.testing.assert_array_equal(
        opened.tensors["token_embd.weight"].data, old.tensors["token_embd.weight"].data
    )
    draft = draft_of(old, rank=rank)
    kept = torch.load(trained / "run" / "checkpoint.pt", weights_only=True)["weights"]
    with torch.no_grad():
        for name, weight in draft.parameters.items():
            weight.copy_(kept[name])
    for name, values in draft.arrays().items():
        assert relative_error(dequantize(opened.tensors[name]), values) < 0.01, name
    wanted = draft.logits(torch.from_numpy(TEXT), 0).detach().numpy()
    found = engine_logits(held_in_f32(opened), TEXT)
    assert relative_error(found, wanted) < 0.05
    assert relative_error(engine_logits(held_in_f32(old), TEXT), wanted) > 0.2


def test_its_drafts_are_accepted_and_change_nothing(trained: Path, files: dict[str, Path]) -> None:
    """As a draft model of the engine, on the prompts that it was trained on, beside the one that it was."""
    params = SamplingParams(temperature=0.0, max_tokens=32)
    chats = [[{"role": "user", "content": line}] for line in files["prompts"].read_text().splitlines()]
    with LLM(str(files["target"]), speculative_config={"method": "none"}) as llm:
        plain = [output.outputs[0].token_ids for output in llm.chat(chats, params)]
    means = []
    for draft in (files["gguf"], trained):
        config = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": 3}
        with LLM(str(files["target"]), speculative_config={**config, "quantization": "stored"}) as llm:
            outputs = llm.chat(chats, params)
        assert [output.outputs[0].token_ids for output in outputs] == plain
        drafts = [output.outputs[0].metrics.drafts for output in outputs]
        means.append(1 + sum(d.num_accepted_tokens for d in drafts) / sum(d.num_drafts for d in drafts))
    assert means[1] > means[0] + 0.2


def test_a_folder_stays_one(files: dict[str, Path], tmp_path: Path) -> None:
    """With its tokenizer, its types, and values that the engine computes with."""
    done, said = train(files, tmp_path / "draft", draft="folder", settings=replace(SETTINGS, epochs=1))
    assert done
    assert "about ×" in said[-1] or "no speed-up" in said[-1]
    opened = open_model(tmp_path / "draft")
    assert opened.format == "safetensors"
    assert opened.chat_template is not None
    assert {t.type for t in opened.tensors.values()} == {"BF16"}
    kept = torch.load(tmp_path / "draft" / "run" / "checkpoint.pt", weights_only=True)["weights"]
    assert relative_error(dequantize(opened.tensors["blk.1.ffn_down.weight"]), kept["blk.1.down"]) < 4e-3
    assert relative_error(dequantize(opened.tensors["output_norm.weight"]), kept["output_norm.weight"]) < 4e-3


@pytest.mark.parametrize("stops", [[1, 7]])
def test_an_interrupted_run_ends_with_the_same_weights(
    trained: Path, files: dict[str, Path], rank: int, tmp_path: Path, stops: list[int]
) -> None:
    """Bit for bit, in texts, probabilities, checkpoint and files."""
    folder, settings = tmp_path / "draft", settings_of(rank)
    for updates in stops:
        assert not train(files, folder, updates=updates, settings=settings)[0]
        assert not (folder / "draft.gguf").exists()
    assert train(files, folder, settings=settings)[0]
    for name in ("run/texts.jsonl", "run/probabilities", "draft.gguf"):
        assert (folder / name).read_bytes() == (trained / name).read_bytes(), name
    one, other = (
        torch.load(path / "run" / "checkpoint.pt", weights_only=True)["weights"] for path in (folder, trained)
    )
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert [e.held for e in history(folder)] == [e.held for e in history(trained)]


# --- What is learned from -------------------------------------------------------------------------


class Chain(ProbabilityStore):
    """Records of a target that wants, after each token, the one that a fixed permutation says."""

    wanted = np.random.default_rng(7).permutation(VOCAB_SIZE)

    def of(self, text: int) -> Any:
        ids = self._texts[text].ids
        found = np.zeros(len(self._texts[text].answer), record_of(2))
        at = np.array(ids[len(self._texts[text].prompt) - 1 : -1])
        found["ids"] = np.stack([self.wanted[at], self.wanted[at - 1]], axis=1)
        found["probs"] = 0.95, 0.03
        return found


class Shuffled(Chain):
    """The broken twin: what is wanted at another place."""

    def of(self, text: int) -> Any:
        return np.roll(super().of(text), 1)


class OnPrompts(Examples):
    """The broken twin: the loss is on the prompt's places too, as if the records were of these."""

    def __getitem__(self, index: int) -> Example:
        made = super().__getitem__(index)
        return replace(made, tokens=made.tokens[: -made.first], first=0)


@pytest.mark.parametrize(
    ("store", "examples", "least", "most"),
    [(Chain, Examples, 0.6, 1.0), (Shuffled, Examples, 0.0, 0.2), (Chain, OnPrompts, 0.0, 0.2)],
)
def test_each_place_learns_what_is_wanted_there(
    tmp_path: Path, store: type[Chain], examples: type[Examples], least: float, most: float
) -> None:
    """With random texts, whose tokens tell nothing else. It is tested on what the target truly wants."""
    rng = np.random.default_rng(0)
    each = [tuple(rng.integers(0, 24, 28).tolist()) for _ in range(48)]
    texts = [Text(i, ids[:6], ids[6:], 0.0, i % 8 == 7) for i, ids in enumerate(each)]
    draft = draft_of(open_model(tiny_gguf(tmp_path / "d.gguf", dims=SMALL, tied=False)))
    settings = replace(SETTINGS, epochs=6, batch=4)
    path = tmp_path / "probabilities"
    taught = examples(texts, store(path, texts, VOCAB_SIZE), VOCAB_SIZE, 64)
    lesson = DraftLesson(draft, taught, settings)
    assert Trainer(lesson, settings, checkpoint=tmp_path / "checkpoint.pt").run()
    truly = DraftLesson(draft, Examples(texts, Chain(path, texts, VOCAB_SIZE), VOCAB_SIZE, 64), settings)
    likeness = truly.held().likeness
    assert likeness is not None
    assert least <= likeness.agreement <= most


def test_only_places_of_the_answer_count(tmp_path: Path) -> None:
    """The gradient does not depend on what would be wanted in the prompt, but on the prompt itself."""
    draft = draft_of(source(tmp_path, "qwen2"))
    tokens = torch.from_numpy(TEXT)
    logits = draft.logits(tokens, 10).detach()
    whole = example_of(logits + torch.randn(logits.shape, generator=torch.Generator().manual_seed(0)), 8)
    one = replace(whole, tokens=tokens, first=10)
    assert len(draft.logits(tokens, 10)) == len(tokens) - 10
    other = replace(one, tokens=torch.cat([tokens[:9].flip(0), tokens[9:]]))
    assert float(loss_of(draft, one).detach()) != pytest.approx(float(loss_of(draft, other).detach()))


# --- Refusals and files ---------------------------------------------------------------------------


def test_a_draft_of_another_vocabulary_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    tokens = [f"t{i}" for i in range(VOCAB_SIZE)]
    other = tiny_gguf(tmp_path / "other.gguf", dims=SMALL, keys={"tokenizer.ggml.tokens": tokens})
    with pytest.raises(VocabularyMismatchError, match="not the target's"):
        train({**files, "other": other}, tmp_path / "out", draft="other")
    assert not (tmp_path / "out").exists()


def test_another_draft_is_refused(trained: Path, files: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"trains another draft model, 'Tiny'"):
        train(files, trained, draft="folder")


def test_parts_that_cannot_be_trained_are_named(files: dict[str, Path]) -> None:
    opened = open_model(files["gguf"])
    layers = [replace(layer, sinks=True) for layer in opened.architecture.layers]
    sinks = replace(opened, architecture=replace(opened.architecture, layers=tuple(layers)))
    with pytest.raises(UnsupportedModelError, match="attention sinks"):
        check_trainable(sinks)
    tensors = {name: t for name, t in opened.tensors.items() if name != "blk.1.attn_k.bias"}
    with pytest.raises(UnsupportedModelError, match="layer 1 has a bias for some of q, k and v only"):
        check_trainable(replace(opened, tensors=tensors))


def test_training_that_diverges_is_told(files: dict[str, Path], tmp_path: Path) -> None:
    settings = replace(SETTINGS, rate=0.99, epochs=1)

    class Broken(Draft):
        def arrays(self) -> Any:
            return {name: np.full_like(rows, np.nan) for name, rows in super().arrays().items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("outrider.training.draft_run.Draft", Broken)
        with pytest.raises(ConfigError, match=r"--rate below 0\.99"):
            train(files, tmp_path / "draft", settings=settings)
    assert not (tmp_path / "draft" / "draft.gguf").exists()


def test_the_card_says_what_was_done(trained: Path) -> None:
    card = (trained / "README.md").read_text()
    assert card.startswith("---\nlicense: mit\n")
    assert "prompts of files, answered" in card
    first, *_, last = history(trained)
    for each in (first, last):
        assert each.held.likeness is not None
        assert f"{100 * each.held.likeness.agreement:.1f}%" in card
        assert f"{each.held.acceptance.tokens_per_pass:.2f}" in card
    assert "types of what was trained | Q8_0 |" in card


def test_texts_that_are_too_long_for_the_draft_are_left_out(tmp_path: Path) -> None:
    texts = [Text(i, (1, 2), tuple(range(3, 3 + size)), 0.0, i > 2) for i, size in enumerate((4, 9, 5, 6))]
    examples = Examples(texts, Chain(tmp_path / "p", texts, VOCAB_SIZE), VOCAB_SIZE, 10)
    assert (examples.training, examples.held_out) == ([0, 2], [3])
    assert Examples(texts, Chain(tmp_path / "p", texts, VOCAB_SIZE), 11, 64).training == [0, 2]


def test_what_it_takes_is_told_before_anything_is_written(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights' values, gradients and moments, and twice a checkpoint."""
    with pytest.raises(ConfigError, match="fewer --tokens"):
        train(files, tmp_path / "draft", settings=replace(SETTINGS, tokens=10**12))
    monkeypatch.setattr("outrider.training.costs.available_bytes", lambda: 1000)
    with pytest.raises(InsufficientMemoryError, match="smaller draft model"):
        train(files, tmp_path / "draft")
    assert not (tmp_path / "draft").exists()
    opened = open_model(files["gguf"])
    trained = sum(w.numel() for w in draft_of(opened).parameters.values())
    disk, memory = draft_costs.training_bytes(opened, SETTINGS)
    assert disk == 24 * trained
    assert memory > 16 * trained


class Large(Chain):
    """Records of a target with more ids than the draft model."""

    def of(self, text: int) -> Any:
        found = np.zeros(3, record_of(3))
        found["ids"], found["probs"] = [[5, 400, 7], [500, 3, 9], [1, 2, 3]], [0.5, 0.3, 0.1]
        return found


def test_probabilities_of_other_ids_go_to_the_rest(tmp_path: Path) -> None:
    texts = [Text(0, (1, 2), (3, 4, 5), 0.0, held) for held in (False, True)]
    made = Examples(texts, Large(tmp_path / "p", texts, 512), VOCAB_SIZE, 64)[0]
    assert made.ids.tolist() == [[5, 5, 7], [VOCAB_SIZE - 1, 3, 9], [1, 2, 3]]
    assert (made.probs > 0).tolist() == [[True, False, True], [False, True, True], [True] * 3]
    assert (made.tokens.tolist(), made.first) == ([1, 2, 3, 4], 1)
    logits = torch.zeros((3, VOCAB_SIZE), requires_grad=True)
    divergence(logits, made).sum().backward()
    assert torch.isfinite(logits.grad).all()
