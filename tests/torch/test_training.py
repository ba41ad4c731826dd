"""`outrider train`: the head in PyTorch against the engine, and whether it learns what its target does."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
load_file = pytest.importorskip("safetensors.numpy").load_file

from outrider.decoding.sampling.params import SamplingParams  # noqa: E402
from outrider.engines.heads import HeadItem  # noqa: E402
from outrider.engines.native.head import NativeHead  # noqa: E402
from outrider.errors import ConfigError, ModelFileError, UnsupportedModelError  # noqa: E402
from outrider.llm import LLM  # noqa: E402
from outrider.models.eagle3.open import open_head  # noqa: E402
from outrider.models.open import open_model  # noqa: E402
from outrider.training import export, payoff  # noqa: E402
from outrider.training.head import Head  # noqa: E402
from outrider.training.head_lesson import Example, Examples, HeadLesson, Target  # noqa: E402
from outrider.training.head_run import made_head  # noqa: E402
from outrider.training.precision import mixed_precision  # noqa: E402
from outrider.training.progress import Acceptance, Evaluation, Held  # noqa: E402
from outrider.training.settings import Settings  # noqa: E402
from outrider.training.sizes import HeadSizes  # noqa: E402
from outrider.training.states import Layout, StateStore, rows_of  # noqa: E402
from outrider.training.texts import Text  # noqa: E402
from outrider.training.trainer import Trainer  # noqa: E402
from tests.support.models import VOCAB_SIZE, Dims, tiny_gguf  # noqa: E402
from tests.torch.support import CPU, relative_error, trained_by  # noqa: E402

DIMS = Dims(layers=7, context=512)
LAYERS = (2, 3, 4)
ROWS, DRAFTED = 24, 3


def made(folder: Path, rows: int = 96) -> export.Made:
    """A head with random weights, so many ids of the vocabulary, and norms that are not ones."""
    source = open_model(tiny_gguf(folder / "target.gguf", dims=DIMS, tied=False))
    ids = np.sort(np.random.default_rng(3).permutation(VOCAB_SIZE)[:rows])
    head, _ = made_head(source, ids, len(LAYERS), 5, "cpu")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in head.parameters():
            if weight.ndim == 1:
                weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
            else:
                weight.copy_(weight.half().float())  # as files hold it
        head.output.copy_(head.output.half().float())
    last = Evaluation(0, 0, 0.0, Held(Acceptance(10, (5, 2))))
    settings = Settings(data="self", tokens=1)
    return export.Made(head, source, ids, LAYERS, settings, last, 0.9, 100, 60, 1.0, "apache-2.0")


def engine_rows(
    head: NativeHead, tokens: Sequence[int], states: Any, base: int
) -> tuple[list[Any], list[Any]]:
    """(logits, states) of a draft from row `base` on: first with the target's states, then its own."""
    cache = head.new_cache(64)
    first = HeadItem(
        cache, np.array(tokens[: base + 1], np.int32), states[: base + 1], np.array([base], np.int32)
    )
    (logits,), (given,) = head.forward_head([first], fed_back=False)
    found = [logits[0].copy()], [given[0].copy()]
    for token in tokens[base + 1 : base + 1 + DRAFTED]:
        item = HeadItem(cache, np.array([token], np.int32), found[1][-1][None], np.zeros(1, np.int32))
        (logits,), (given,) = head.forward_head([item], fed_back=True)
        found[0].append(logits[0].copy())
        found[1].append(given[0].copy())
    cache.close()
    return found


@pytest.mark.parametrize("file", ["", "head.gguf"])
@pytest.mark.parametrize("first", [0, 5])
def test_the_engine_computes_what_was_trained(tmp_path: Path, file: str, first: int) -> None:
    """Logits and states of all steps of the training-time test, through the files of both dialects."""
    head = made(tmp_path)
    folder = tmp_path / "head"
    folder.mkdir()
    export.write(folder, head)
    found = open_head(folder / file)
    assert found is not None
    opened = found.for_target(head.source)
    assert opened.layers == LAYERS
    assert opened.target_ids is not None
    np.testing.assert_array_equal(opened.target_ids, head.ids)
    engine = NativeHead.load(opened.source, threads=1, kv_dtype="f32")
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCAB_SIZE, ROWS + DRAFTED)
    states = rng.standard_normal((ROWS, 3 * DIMS.hidden)).astype(np.float32)
    with torch.no_grad():
        steps = list(
            head.head.unroll(torch.tensor(states)[None], torch.tensor(tokens)[None], DRAFTED + 1, first)
        )
        logits = [head.head.logits(given)[0].numpy() for given in steps]
    for base in (first, 9, ROWS - 1):
        wanted_logits, wanted_states = engine_rows(engine, tokens.tolist(), states, base)
        for k in range(DRAFTED + 1):
            for mine, theirs in (
                (steps[k][0, base - first].numpy(), wanted_states[k]),
                (logits[k][base - first], wanted_logits[k]),
            ):
                assert np.linalg.norm(mine - theirs) < 1e-4 * np.linalg.norm(theirs), (base, k)


@pytest.mark.parametrize("rows", [96, VOCAB_SIZE])
def test_only_a_part_of_the_vocabulary_is_mapped(tmp_path: Path, rows: int) -> None:
    """vLLM refuses a head of all ids that has d2t."""
    head = made(tmp_path, rows)
    (tmp_path / "head").mkdir()
    export.write(tmp_path / "head", head)
    names = load_file(tmp_path / "head" / "model.safetensors")
    assert ("d2t" in names, "t2d" in names) == (rows < VOCAB_SIZE,) * 2
    for file in ("", "head.gguf"):
        found = open_head(tmp_path / "head" / file)
        assert found is not None
        assert (found.for_target(head.source).target_ids is None) == (rows == VOCAB_SIZE)
        assert found.trained_length == head.longest


def test_products_of_bfloat16_are_near_those_of_float32(tmp_path: Path) -> None:
    head = made(tmp_path)
    rng = np.random.default_rng(0)
    states, last = (
        torch.from_numpy(rng.standard_normal((ROWS, n * DIMS.hidden)).astype(np.float32)) for n in (3, 1)
    )
    tokens = torch.from_numpy(rng.integers(0, VOCAB_SIZE, ROWS + 1))
    ids = torch.from_numpy(head.ids)
    example = Example(states, tokens, last, ids[torch.arange(ROWS) % len(ids)], 3, 5)
    target = Target(ids, torch.ones(DIMS.hidden), head.head.output, 1e-5)

    class One:
        training, held_out, rows = (0,), (0,), len

        def __getitem__(self, index: int) -> Example:
            return example

    found = []
    for mixed in (False, True):
        lesson = HeadLesson(head.head, target, One(), DRAFTED, mixed=mixed)  # type: ignore[arg-type]
        head.head.zero_grad()
        loss = lesson.loss(0)
        loss.backward()
        assert loss.dtype == torch.float32
        found.append((float(loss.detach()), head.head.fc.weight.grad.numpy().copy()))
    (exact, gradient), (close, other) = found
    assert 0 < abs(close / exact - 1) < 0.02
    assert 1e-4 < relative_error(other, gradient) < 0.1


def test_bfloat16_is_used_where_the_processor_multiplies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for has, wanted in ({"avx512_bf16": True}, True), ({"amx_bf16": True}, True), ({"avx2": True}, False):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda has=has: has)
        assert mixed_precision(CPU) == wanted
    assert not mixed_precision(torch.device("meta"))


# --- Training -------------------------------------------------------------------------------------

TARGET = Dims(layers=6, context=256)
WORDS = "the quick brown fox jumps over lazy dog and then other dogs jump return name for in if not none"
SETTINGS = Settings(data="self", tokens=1500, epochs=3, max_answer=48, steps=3, rate=3e-3)


@pytest.fixture(autouse=True)
def no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """What passes cost is told of real models only."""
    monkeypatch.setattr(payoff, "of_head", lambda *_: None)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(a target, a file of prompts)"""
    folder = tmp_path_factory.mktemp("target")
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(WORDS.split(), 4)) for _ in range(32)]
    (folder / "prompts.txt").write_text("\n".join(lines))
    return tiny_gguf(folder / "target.gguf", dims=TARGET, tied=False), folder / "prompts.txt"


def train(
    files: tuple[Path, Path], folder: Path, *, updates: int | None = None, settings: Settings = SETTINGS
) -> tuple[bool, list[str]]:
    """(whether it is done, what it said). updates: of the weights, until it is interrupted."""
    return trained_by(
        updates,
        model=str(files[0]),
        folder=folder,
        settings=settings,
        given=frozenset({"data"}),
        data=(str(files[1]),),
    )


@pytest.fixture(scope="module")
def trained(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "head"
    done, said = train(files, folder)
    assert done
    assert "to write" in said[0]
    assert "disk" in said[0]
    return folder


def history(folder: Path) -> list[dict[str, Any]]:
    found = torch.load(folder / "run" / "checkpoint.pt", weights_only=True)
    return list(found["state"]["history"])


def per_pass(evaluation: dict[str, Any]) -> float:
    return Evaluation.read(evaluation).held.acceptance.tokens_per_pass


def test_it_learns(trained: Path) -> None:
    before, *later = history(trained)
    assert per_pass(before) < 1.1
    assert per_pass(later[-1]) > per_pass(before) + 0.5
    assert later[-1]["loss"] < 0.7 * later[0]["loss"]


def test_the_engine_accepts_its_drafts(trained: Path, files: tuple[Path, Path]) -> None:
    """Greedily on its training prompts, in the engine: of the head's files, not of the run."""
    params = SamplingParams(temperature=0.0, max_tokens=48)
    chats = [[{"role": "user", "content": line}] for line in files[1].read_text().splitlines()]
    with LLM(str(files[0]), speculative_config={"method": "none"}) as llm:
        plain = [output.outputs[0].token_ids for output in llm.chat(chats, params)]
    head = {"method": "eagle3", "model": str(trained), "num_speculative_tokens": 3, "quantization": "stored"}
    with LLM(str(files[0]), speculative_config=head) as llm:
        outputs = llm.chat(chats, params)
    assert [output.outputs[0].token_ids for output in outputs] == plain
    drafts = [output.outputs[0].metrics.drafts for output in outputs]
    mean = 1 + sum(d.num_accepted_tokens for d in drafts) / sum(d.num_drafts for d in drafts)
    assert mean > 1.7


@pytest.mark.parametrize("stops", [[1, 7]])
def test_an_interrupted_run_ends_with_the_same_weights(
    trained: Path, files: tuple[Path, Path], tmp_path: Path, stops: list[int]
) -> None:
    """Bit for bit, in texts, hidden states, checkpoint and files."""
    folder = tmp_path / "head"
    for updates in stops:
        assert not train(files, folder, updates=updates)[0]
        assert not (folder / "model.safetensors").exists()
    assert train(files, folder)[0]
    for name in ("run/texts.jsonl", "run/states", "model.safetensors", "config.json", "head.gguf"):
        assert (folder / name).read_bytes() == (trained / name).read_bytes(), name
    one, other = (
        torch.load(path / "run" / "checkpoint.pt", weights_only=True)["weights"] for path in (folder, trained)
    )
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert [per_pass(e) for e in history(folder)] == [per_pass(e) for e in history(trained)]


class ShiftedExamples(Examples):
    """The states of the token before, which no longer belong to the row."""

    def __getitem__(self, index: int) -> Example:
        made = super().__getitem__(index)
        return replace(made, states=made.states.roll(1, dims=0))


class NextFromState(StateStore):
    """Records of a target whose wishes after a token depend on its state at the token before, and on nothing
    else: a head can know it from the right row's state only."""

    def of(self, text: int) -> Any:
        rng = np.random.default_rng(text)
        count, size = rows_of(self._texts[text]), self.layout.hidden_size
        found = np.zeros(count, self.layout.record)
        states = rng.standard_normal((count, size))
        last = np.concatenate([states[:1], states[:-1] @ self.turn])
        found["states"] = np.stack([states, last], axis=1)
        found["likeliest"] = (last @ self.output.T).argmax(axis=1)
        return found

    size = 16
    turn = np.linalg.qr(np.random.default_rng(7).standard_normal((size, size)))[0]
    output = np.random.default_rng(8).standard_normal((24, size)).astype(np.float32)


@pytest.mark.parametrize(("kind", "least", "most"), [(Examples, 0.3, 1.0), (ShiftedExamples, 0.0, 0.2)])
def test_a_row_reads_the_state_of_its_own_token(
    tmp_path: Path, kind: type[Examples], least: float, most: float
) -> None:
    """Of the first position, where 1 in 24 would be right by chance."""
    rng = np.random.default_rng(0)
    each = [tuple(rng.integers(0, 24, 44).tolist()) for _ in range(32)]
    texts = [Text(i, ids[:4], ids[4:], 0.0, i % 8 == 7) for i, ids in enumerate(each)]
    store = NextFromState(tmp_path / "states", Layout((1, 2), NextFromState.size), texts)
    settings = Settings(data="self", tokens=1, epochs=12, steps=2, batch=1, rate=1e-2)
    sizes = HeadSizes(hidden=16, heads=2, kv_heads=1, head_dim=8, ffn=32, states=1, eps=1e-5, theta=1e4)
    output = torch.from_numpy(NextFromState.output)
    head = Head(sizes, torch.randn(24, 16, generator=torch.Generator().manual_seed(0)), output)
    target = Target(torch.arange(24), torch.ones(16), output, 1e-5)
    examples = kind(texts, store, [0], settings.steps)
    head.prepare(examples.deviation(), target.norm)
    lesson = HeadLesson(head, target, examples, settings.steps)
    assert Trainer(lesson, settings, checkpoint=tmp_path / "checkpoint.pt").run()
    assert least <= lesson.held().acceptance.by_position[0] <= most


def test_a_run_of_another_target_is_refused(trained: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    other = tiny_gguf(tmp_path / "other.gguf", dims=TARGET, tied=False, seed=1)
    with pytest.raises(ConfigError, match="another target"):
        train((other, files[1]), trained)


def test_a_target_of_two_layers_is_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    small = tiny_gguf(tmp_path / "small.gguf", dims=Dims(layers=2))
    with pytest.raises(UnsupportedModelError, match="has 2 layers"):
        train((small, files[1]), tmp_path / "head")


def test_a_disk_without_room_is_told_before_anything_is_written(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="fewer --tokens"):
        train(files, tmp_path / "head", settings=replace(SETTINGS, tokens=10**12))
    assert not (tmp_path / "head").exists()


def test_a_damaged_checkpoint_is_told(trained: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "head")
    (tmp_path / "head" / "run" / "checkpoint.pt").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(ModelFileError, match="delete it"):
        train(files, tmp_path / "head")


def test_the_card_says_what_was_done(trained: Path) -> None:
    card = (trained / "README.md").read_text()
    assert card.startswith("---\nlicense: mit\n")
    assert "| data | prompts of files, answered" in card
    assert f"{per_pass(history(trained)[-1]):.2f} tokens a pass" in card


def test_own_prompts_and_those_of_files_are_both_learned_from(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    settings = replace(SETTINGS, epochs=1, tokens=600)
    both = {"model": str(files[0]), "folder": tmp_path / "head", "settings": settings, "given": frozenset()}
    done, _ = trained_by(None, **both, data=("self", str(files[1])))
    assert done
    card = (tmp_path / "head" / "README.md").read_text()
    assert "prompts that the target wrote itself and prompts of files, answered" in card
    with pytest.raises(ConfigError, match="a run with data"):
        trained_by(None, **{**both, "given": frozenset({"data"})}, data=("self",))
