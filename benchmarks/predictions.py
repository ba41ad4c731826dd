"""Holds what `outrider plan` predicts against what happens: memory, plain speed and speed-up.

    python benchmarks/predictions.py [--only memory,speed,speedup] [--contexts 512,2048] [--temps 0,0.7]
        [--workloads chat,code,…] [--limit 3] [--tokens 96] [--json FILE]

Every case runs in a process of its own, which loads a target (and a draft model), fills a context and
decodes: the default model, the Qwen pair and Gemma 3 270M, as far as they are here. Memory is anonymous
memory beyond that of the imported program. Speed is T(1) predicted from some layers, with an empty cache of
curves, against plain decoding. Speed-ups are those of prediction_speedups.py. Prints a table of errors and
writes JSON, which keeps what it has of the parts that are not measured. Speeds need a quiet machine.
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
from outrider.bench import workloads
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
from prediction_speedups import KNOWN, rows

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
    parser.add_argument("--only", default="memory,speed,speedup", help="what to predict, with commas between")
    parser.add_argument(
        "--contexts", type=lambda s: [int(n) for n in s.split(",")], default=[512, 2048], help="tokens"
    )
    parser.add_argument(
        "--temps", type=lambda s: [float(t) for t in s.split(",")], default=[0.0, 0.7], help="for speedup"
    )
    parser.add_argument(
        "--workloads", type=lambda s: s.split(","), default=list(workloads.BUILT_IN), help="for speedup"
    )
    parser.add_argument("--limit", type=int, default=3, help="prompts on record, and prompts measured")
    parser.add_argument(
        "--tokens", type=int, default=96, help="most tokens of a text whose speed-up is measured"
    )
    parser.add_argument("--json", type=Path, default=RESULTS / "predictions.json")
    args = parser.parse_args()
    only = set(args.only.split(","))
    here: list[tuple[Path, Path | None]] = []
    for names in CASES:
        paths = [path for name in names if name is not None and (path := present_model(name)) is not None]
        if len(paths) == sum(name is not None for name in names):
            here.append((paths[0], paths[1] if len(paths) > 1 else None))
    document: dict[str, Any] = {"memory": [], "speed": [], "speedup": [], "machine": {}}
    if args.json.exists():
        document |= json.loads(args.json.read_text("utf-8"))
    document["machine"] |= {part: describe() for part in only}
    if "memory" in only:
        document["memory"] = []
        for target, draft in here:
            document["memory"] += [memory_row(target, draft, size) for size in args.contexts]
    if "speed" in only:
        document["speed"] = [speed_row(target) for target, draft in here if draft is None]
    if "speedup" in only:
        pair = [present_model(name) for name in KNOWN]
        if None in pair:
            raise SystemExit(f"not here: outrider pull {' '.join(KNOWN)}")
        one, other = (Path(str(path)) for path in pair)
        found = rows(
            *((one, other), args.workloads, args.temps, args.limit, args.tokens),
            on_row=lambda row: print(json.dumps(row), file=sys.stderr, flush=True),
        )
        again = {(row["workload"], row["temperature"]) for row in found}
        kept = [row for row in document["speedup"] if (row["workload"], row["temperature"]) not in again]
        document["speedup"] = [*kept, *found]
    print(text({part: document[part] if part in only else [] for part in ("memory", "speed", "speedup")}))
    args.json.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    return 0


def text(document: dict[str, Any]) -> str:
    """The errors."""
    size = memory.size
    sizes = [["target", "draft", "context", "predicted", "measured", "error"]]
    sizes += [
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
    gains = [["workload", "T", "from", "method", "predicted", "measured", "error", "drift"]]
    gains += [
        [
            s["workload"],
            f"{s['temperature']:g}",
            s["from"],
            s["method"],
            f"{s['predicted']:.2f}",
            f"{s['measured']:.2f}",
            f"{s['error']:+.0%}",
            f"{s['drift']:.0%}",
        ]
        for s in document["speedup"]
    ]
    return "\n\n".join(aligned(table) for table in (sizes, speeds, gains) if len(table) > 1)


if __name__ == "__main__":
    sys.exit(main())
