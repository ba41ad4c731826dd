"""Holds what `outrider plan` predicts against what happens: memory, plain speed and speed-up.

    python benchmarks/predictions.py [--only memory,speed] [--contexts 512,2048] [--json FILE]

Every case runs in a process of its own, which loads a target (and a draft model), fills a context and
decodes: the default model, the Qwen pair and Gemma 3 270M, as far as they are here. Memory is anonymous
memory beyond that of the imported program. Speed is T(1) predicted from some layers, with an empty cache of
curves, against plain decoding. Prints a table of errors and writes JSON. Speeds need a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np

from outrider import memory
from outrider.bench.cost_curve import aligned
from outrider.bench.machine import describe
from outrider.cli.demo import present_model
from outrider.config.engine import EngineConfig
from outrider.config.speculative import AutoConfig
from outrider.decoding.sampling.params import SamplingParams
from outrider.llm import LLM
from outrider.models.open import open_model
from outrider.models.quantization import for_draft, quantized
from outrider.pipeline import build
from outrider.plan import memory_parts
from outrider.plan.curves import curve_of

RESULTS = Path(__file__).resolve().parent / "results"
CASES = (
    ("smollm2", None),
    ("gemma-3-270m", None),
    ("qwen-coder-0.5b", None),
    ("qwen-coder-1.5b", None),
    ("qwen-coder-1.5b", "qwen-coder-0.5b"),
)
DECODED = 64  # tokens after the prompt


def anonymous() -> int:
    """Bytes of anonymous memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon")


def child(target: str, draft: str | None, context: int) -> dict[str, Any]:
    """Load, fill the context, decode: bytes beyond the program's own."""
    before = anonymous()
    choice = AutoConfig(draft)
    pipeline = build(EngineConfig(target, choice, max_model_len=context, max_num_seqs=1), progress=False)
    loaded = anonymous() - before
    llm = LLM.from_pipeline(pipeline)
    ids = (np.arange(context - DECODED) * 7919 % (pipeline.vocab_size - 300)).tolist()
    params = SamplingParams(temperature=0.0, max_tokens=DECODED, ignore_eos=True)
    most, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.01):
            most[0] = max(most[0], anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    llm.generate({"prompt_token_ids": ids}, params)
    ended.set()
    watcher.join()
    return {"loaded": loaded, "filled": most[0] - before}


def in_child(target: Path, draft: Path | None, context: int) -> dict[str, Any]:
    line = [
        sys.executable,
        __file__,
        "--child",
        str(target),
        "" if draft is None else str(draft),
        str(context),
    ]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def memory_row(target: Path, draft: Path | None, context: int) -> dict[str, Any]:
    source = open_model(target)
    small = None
    if draft is not None:
        opened = open_model(draft)
        small = quantized(opened, for_draft("auto", opened, source))
    need = memory_parts.needed(source, small, context, 1)
    found = in_child(target, draft, context)
    return {
        "target": source.display_name,
        "draft": None if small is None else small.display_name,
        "context": context,
        "predicted": need.total,
        "measured": found["filled"],
        "loaded": found["loaded"],
        "error": need.total / found["filled"] - 1.0,
    }


def speed_row(target: Path) -> dict[str, Any]:
    source = open_model(target)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OUTRIDER_CACHE"] = folder
        try:
            curve = curve_of(source)
            llm = LLM(str(target), speculative_config="none", max_num_seqs=1)
            params = SamplingParams(temperature=0.0, max_tokens=DECODED, ignore_eos=True)
            best = min(tpot(llm, params) for _ in range(3))
        finally:
            del os.environ["OUTRIDER_CACHE"]
    return {
        "target": source.display_name,
        "how": curve.how,
        "predicted_ms": curve.at(1) * 1e3,
        "measured_ms": best,
        "error": curve.at(1) * 1e3 / best - 1.0,
    }


def tpot(llm: LLM, params: SamplingParams) -> float:
    """Milliseconds per token of a short text."""
    (out,) = llm.generate("The history of the sea is", params)
    found = out.metrics.tpot_ms
    assert found is not None
    return float(found)


def main() -> int:
    """Run the cases, print, write."""
    if sys.argv[1:2] == ["--child"]:
        large, small, context = sys.argv[2:5]
        print(json.dumps(child(large, small or None, int(context))))
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="memory,speed", help="what to predict, with commas between")
    parser.add_argument(
        "--contexts", type=lambda s: [int(n) for n in s.split(",")], default=[512, 2048], help="tokens"
    )
    parser.add_argument("--json", type=Path, default=RESULTS / "predictions.json")
    args = parser.parse_args()
    here: list[tuple[Path, Path | None]] = []
    for names in CASES:
        paths = [path for name in names if name is not None and (path := present_model(name)) is not None]
        if len(paths) == sum(name is not None for name in names):
            here.append((paths[0], paths[1] if len(paths) > 1 else None))
    document: dict[str, Any] = {"machine": describe(), "memory": [], "speed": []}
    if "memory" in args.only:
        for target, draft in here:
            document["memory"] += [memory_row(target, draft, size) for size in args.contexts]
    if "speed" in args.only:
        document["speed"] = [speed_row(target) for target, draft in here if draft is None]
    print(text(document))
    args.json.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    return 0


def text(document: dict[str, Any]) -> str:
    """The errors."""
    size = memory.size
    rows = [["target", "draft", "context", "predicted", "measured", "error"]]
    rows += [
        [
            m["target"],
            m["draft"] or "",
            str(m["context"]),
            size(m["predicted"]),
            size(m["measured"]),
            f"{m['error']:+.1%}",
        ]
        for m in document["memory"]
    ]
    speeds = [["target", "predicted ms", "measured ms", "error"]]
    speeds += [
        [s["target"], f"{s['predicted_ms']:.1f}", f"{s['measured_ms']:.1f}", f"{s['error']:+.1%}"]
        for s in document["speed"]
    ]
    return "\n\n".join(aligned(table) for table in (rows, speeds) if len(table) > 1)


if __name__ == "__main__":
    sys.exit(main())
