"""The heads that `outrider train` writes, in a real vLLM: it must draft what Outrider's own engine drafts.

The head has random weights and norms that are not ones, so that its drafts depend on all that it reads."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.numpy")

from outrider.engines.base import ForwardItem  # noqa: E402
from outrider.engines.heads import HeadItem  # noqa: E402
from outrider.engines.native import NativeModel  # noqa: E402
from outrider.engines.native.head import NativeHead  # noqa: E402
from outrider.engines.vllm.installed import Installed  # noqa: E402
from outrider.models.eagle3.head import usual_layers  # noqa: E402
from outrider.models.eagle3.open import open_head  # noqa: E402
from outrider.models.open import open_model  # noqa: E402
from outrider.training import export  # noqa: E402
from outrider.training.head_run import made_head  # noqa: E402
from outrider.training.progress import Acceptance, Evaluation, Held  # noqa: E402
from outrider.training.settings import Settings  # noqa: E402
from tests.scripts.dequantize_folder import write_folder  # noqa: E402
from tests.support.models import VOCAB_SIZE, Dims, tiny_hf  # noqa: E402

pytestmark = pytest.mark.vllm
CONTEXT = 512
# Widths of heads that vLLM's attention on the CPU has, and another rotation than its default.
DIMS = Dims(layers=8, hidden=128, heads=2, kv_heads=1, ffn=256, context=CONTEXT, head_dim=64, theta=500000.0)
DRAFTED, WRITTEN = 3, 48
# The least share of drafted tokens that a right reading has in common, and the most that a wrong one has.
SAME, OTHER = 0.99, 0.75
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
Drafts: TypeAlias = list[tuple[int, list[int]]]
Ints: TypeAlias = npt.NDArray[np.int32]
Floats: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Recorded:
    """What vLLM did: texts with their prompts, and of each what was drafted after how many of its tokens."""

    target: Path
    head: Path
    texts: list[list[int]]
    drafts: list[Drafts]


def write(folder: Path, target: Path, rows: int) -> None:
    """A head for a target, with so many rows of output."""
    source = open_model(target)
    layers = usual_layers(source.architecture.n_layers)
    ids = np.sort(np.random.default_rng(3).permutation(source.architecture.vocab_size)[:rows])
    head, _ = made_head(source, ids, len(layers), 5, "cpu")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in head.named_parameters():
            if weight.ndim == 1:
                weight.mul_(1 + 0.3 * torch.randn(weight.shape, generator=generator))
            elif "self_attn" in name:
                weight.mul_(2)  # so that positions matter
    last = Evaluation(0, 0, 0.0, Held(Acceptance(10, (5, 2, 1))))
    settings = Settings(data="self", tokens=1)
    folder.mkdir()
    made = export.Made(head, source, ids, layers, settings, last, 0.9, 100, 60, 1.0, "apache-2.0")
    export.write(folder, made)


def record(version: Installed, target: Path, head: Path) -> Recorded:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, VOCAB_SIZE, count).tolist() for count in (3, 17, 60, 200)]
    arguments = {
        "model": str(target),
        "speculative_config": {"method": "eagle3", "model": str(head), "num_speculative_tokens": DRAFTED},
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": CONTEXT,
        "max_num_seqs": 1,
    }
    given = {"arguments": arguments, "prompts": prompts, "max_tokens": WRITTEN}
    script = Path(__file__).with_name("record_drafts.py")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [version.python, str(script)],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        env={**environment, **SETTINGS},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    texts = [prompt + text for prompt, text in zip(prompts, found["texts"], strict=True)]
    return Recorded(target, head, texts, found["drafts"])


@pytest.fixture(scope="module", params=[96, VOCAB_SIZE], ids=["a part of the ids", "all ids"])
def recorded(
    version: Installed, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Recorded:
    folder = tmp_path_factory.mktemp("vllm")
    target = tiny_hf(folder / "target", dims=DIMS, tied=False)
    write(folder / "head", target, request.param)
    return record(version, target, folder / "head")


def share_of_same(recorded: Recorded, folder: Path, *, mapped: bool = True) -> float:
    """The share of vLLM's drafted tokens that Outrider drafts as well with a folder's head; of each draft
    up to the first other one, after which the two read different tokens. mapped: rows mean what the file
    says, or else the ids of the same number."""
    source = open_model(recorded.target)
    sizes = source.architecture
    found = open_head(folder)
    assert found is not None
    opened = found.for_target(source)
    ids = opened.target_ids if mapped and opened.target_ids is not None else np.arange(sizes.vocab_size)
    model = NativeModel.load(source, threads=1, kv_dtype="f32")
    head = NativeHead.load(opened.source, threads=1, kv_dtype="f32")
    asked = right = 0
    for text, drafts in zip(recorded.texts, recorded.drafts, strict=True):
        tokens = np.array(text, np.int32)
        every = np.arange(len(text), dtype=np.int32)
        _, (taken,) = model.forward_hidden(
            [ForwardItem(model.new_cache(CONTEXT), tokens, every - 1, every)], opened.taps
        )
        by_tap = taken.reshape(len(text), len(opened.taps), sizes.hidden_size)
        states = by_tap[:, list(opened.order)].reshape(len(text), -1)
        for known, drafted in drafts:
            own = own_draft(head, tokens[1:known], states[: known - 1], ids)
            agreed = next((k for k in range(DRAFTED) if own[k] != drafted[k]), DRAFTED)
            right += agreed
            asked += min(agreed + 1, DRAFTED)
    assert asked > 4 * WRITTEN // (DRAFTED + 1)
    return right / asked


def own_draft(head: NativeHead, tokens: Ints, states: Floats, ids: Any) -> list[int]:
    """Greedily: tokens that follow those whose states are given, each its next one."""
    cache, found, fed_back = head.new_cache(CONTEXT), [], False
    try:
        for _ in range(DRAFTED):
            item = HeadItem(cache, tokens, states, np.array([len(tokens) - 1], np.int32))
            (logits,), (given,) = head.forward_head([item], fed_back=fed_back)
            found.append(int(ids[logits[0].argmax()]))
            tokens, states, fed_back = np.array(found[-1:], np.int32), given, True
    finally:
        cache.close()
    return found


def test_vllm_drafts_what_outrider_drafts(recorded: Recorded) -> None:
    assert all(len(text) > WRITTEN for text in recorded.texts)
    assert share_of_same(recorded, recorded.head) >= SAME


@pytest.mark.model
def test_of_a_real_model_too(version: Installed, default_model: Path, tmp_path: Path) -> None:
    target = write_folder(default_model, tmp_path / "target")
    write(tmp_path / "head", target, 4096)
    assert share_of_same(record(version, target, tmp_path / "head"), tmp_path / "head") >= SAME


WRONG: Mapping[str, Mapping[str, Any]] = {
    "layers": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]},
    "order of layers": {"eagle_aux_hidden_state_layer_ids": [6, 4, 2]},
    "residual": {"norm_before_residual": False},
    "norm before fc": {"norm_before_fc": False},
    "rotation": {"rope_theta": 10000.0},
    "ids": {},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_the_comparison_would_see_a_wrong_reading(recorded: Recorded, tmp_path: Path, wrong: str) -> None:
    config = json.loads((recorded.head / "config.json").read_text())
    tensors = safetensors.load_file(recorded.head / "model.safetensors")
    if wrong == "ids" and "d2t" not in tensors:
        pytest.skip("the rows are the ids")
    for name, value in WRONG[wrong].items():
        (config if name in config else config["transformer_layer_config"])[name] = value
    if wrong == "norm before fc":
        del tensors["input_norm.weight"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    safetensors.save_file(tensors, tmp_path / "model.safetensors")
    assert share_of_same(recorded, tmp_path, mapped=wrong != "ids") <= OTHER
