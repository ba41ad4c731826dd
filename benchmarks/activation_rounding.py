"""How far 8-bit activations move a tiny random model's results, by weight type.

    python benchmarks/activation_rounding.py [--types Q3_K TQ1_0] [--seeds 3]

For each type a model of two layers and 256 columns, all of whose matrices have the type, runs over 24 random
tokens. Printed are median relative errors of the logits of a token, in percent, against float64 with the same
weights and activations that are not rounded:

    ours       the native engine
    groups     float64, with activations rounded to 8 bits with one scale for 32 columns (and 8 more bits for
               V): what the rounding alone does, whatever the kernel
    llama.cpp  on the same file (where the xllamacpp package is there)

Errors of rounding alone do not depend on the machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.native.support import load, run
from tests.support.models import Dims, tiny_gguf
from tests.support.reference import Reference

from outrider.models.open import open_model
from outrider.models.weight_types import FLOAT_TYPES, SUPPORTED_TYPES

Array = npt.NDArray[np.float64]
TOKENS = [int(i) for i in np.random.default_rng(7).integers(3, 320, 24)]
DIMS = Dims(hidden=256, ffn=512)


def centred(logits: npt.NDArray[np.floating]) -> Array:
    """Less their mean, which leaves the same of logits and of log-probabilities."""
    exact = logits.astype(np.float64)
    return np.asarray(exact - exact.mean(axis=1, keepdims=True))


def error(found: Array, wanted: Array) -> float:
    return float(np.median(np.linalg.norm(found - wanted, axis=1) / np.linalg.norm(wanted, axis=1)))


def errors(path: Path) -> dict[str, float]:
    source = open_model(path)
    wanted = centred(Reference(source).logits(TOKENS))
    groups = Reference(source, rounded=True)
    groups.superblocks = {}  # each group of 32 for itself, and sums of products that are exact
    model = load(source, kv_dtype="f32")
    found = {
        "ours": centred(run(model, model.new_cache(64), TOKENS)),
        "groups": centred(groups.logits(TOKENS)),
    }
    try:
        from tests.scripts.record_family_reference import llama_cpp_log_probs
    except ImportError:
        pass
    else:
        found["llama.cpp"] = centred(llama_cpp_log_probs(path, TOKENS))
    return {name: error(each, wanted) for name, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    usual = [kind for kind in SUPPORTED_TYPES if kind not in FLOAT_TYPES]
    parser.add_argument("--types", nargs="+", default=usual, choices=usual)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for kind in args.types:
            each = [
                errors(tiny_gguf(Path(folder) / "m.gguf", types=kind, dims=DIMS, seed=seed))
                for seed in range(args.seeds)
            ]
            means = {name: float(np.mean([one[name] for one in each])) for name in each[0]}
            print(f"{kind:8}", "  ".join(f"{name} {100 * mean:.2f}" for name, mean in means.items()))


if __name__ == "__main__":
    main()
