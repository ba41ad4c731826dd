"""SmolLM2's weights as floats, in a folder: the torch engine beside transformers and the native engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.0")

from outrider.engines.base import LanguageModel  # noqa: E402
from outrider.engines.native import NativeModel  # noqa: E402
from outrider.models.open import open_model  # noqa: E402
from outrider.models.text.tokenizer import Tokenizer  # noqa: E402
from tests.scripts.dequantize_folder import write_folder  # noqa: E402
from tests.support.real import real_model  # noqa: E402
from tests.torch.support import item, load, relative_error, run, same_bits  # noqa: E402

pytestmark = pytest.mark.model
PROMPTS = ("The capital of France is", "def fibonacci(n):\n", "1 2 3 4 1 2 3 4 1 2")
TOKENS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = real_model("smollm2")
    if path is None:
        pytest.skip("the default model is not here")
    return write_folder(path, tmp_path_factory.mktemp("real") / "smollm2")


def greedy(model: LanguageModel, prompt: list[int]) -> tuple[list[int], list[float]]:
    """(the tokens written, how far the best logit was ahead of the second at each)."""
    cache = model.new_cache(len(prompt) + TOKENS)
    row = model.forward([item(cache, prompt)])[0][-1]
    tokens, gaps = [], []
    for _ in range(TOKENS):
        second, best = np.sort(row)[-2:]
        tokens.append(int(row.argmax()))
        gaps.append(float(best - second))
        row = model.forward([item(cache, tokens[-1:])])[0][0]
    cache.close()
    return tokens, gaps


@pytest.mark.grid(3)
@pytest.mark.parametrize("text", PROMPTS)
def test_texts_are_those_of_transformers_and_of_the_native_engine(folder: Path, text: str) -> None:
    """Equal tokens; or, against the native engine, whose keys and values are halves, the first that differ
    are those whose logits are nearly equal."""
    opened = open_model(folder)
    prompt = Tokenizer.from_data(opened.tokenizer).encode(text)
    ours, native = load(opened), NativeModel.load(opened, threads=1)
    tokens, gaps = greedy(ours, prompt)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        ids = torch.tensor([prompt])
        logits = theirs(ids).logits[0].numpy()
        written = theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=TOKENS,
            do_sample=False,
            eos_token_id=opened.architecture.vocab_size - 1,
            pad_token_id=0,
        )[0, len(prompt) :].tolist()
    assert relative_error(run(ours, ours.new_cache(64), prompt), logits) < 1e-4
    assert tokens == written
    other, _ = greedy(native, prompt)
    parted = next((i for i in range(TOKENS) if tokens[i] != other[i]), None)
    assert parted is None or gaps[parted] < 0.05


def test_strict_bits_on_real_weights(folder: Path) -> None:
    opened = open_model(folder)
    prompt = Tokenizer.from_data(opened.tokenizer).encode(" ".join(PROMPTS))
    model = load(opened, strict=True)
    whole = run(model, model.new_cache(64), prompt)
    cache, parts, at = model.new_cache(64), [], 0
    for size in (1, 2, 17, 5, 64):
        if at < len(prompt):
            parts.append(run(model, cache, prompt[at : at + size]))
        at += size
    assert same_bits(np.concatenate(parts), whole)
