"""Measures predicted outputs: edits of source files, and answers that are asked for again.

    python benchmarks/prediction.py [--runs K] [-n N] [--limit N] [--threads N]

An edit has its file in the prompt and as the prediction. An answer that is asked for again, with one more
wish, has none of it in the prompt: the prediction is what the first question got. Each is answered by plain
decoding, by `auto` without the prediction, and with it, interleaved, on the Qwen pair where it is in the
cache (or in the folder OUTRIDER_DEV_MODELS), else on the default model. Writes
benchmarks/results/prediction.json and prints a table. Returns 1 when a method changed a token.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.cli.demo import MODEL, present_pair
from outrider.config.engine import EngineConfig
from outrider.config.speculative import AutoConfig, NoneConfig
from outrider.decoding.sampling.params import SamplingParams
from outrider.llm import LLM
from outrider.outputs import CompletionOutput
from outrider.pipeline import build_all

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
SOURCE = HERE.parent / "src" / "outrider"
PLAIN, AUTO, PREDICTED = "plain", "auto", "auto with prediction"
METHODS = (PLAIN, AUTO, PREDICTED)

# Each file with a name to replace in it, a function to explain and one to change.
FILES = {
    "server/http/worker_pool.py": ("timeout", "seconds", "close", "let `close` wait for running work"),
    "policy/lookup_backoff.py": ("plain", "plain_seconds", "update", "let `update` return the sleep"),
    "drafters/ngram.py": (
        "path",
        "drafted",
        "_lookup",
        "let `_lookup` draft one token fewer than the budget",
    ),
}
AGAIN = {
    "a queue": (
        "Write a Python class `JobQueue` with priorities: put, get, cancel and len, with docstrings.",
        "Let `get` raise `QueueEmpty` when there is nothing.",
    ),
    "a parser": (
        "Write a Python function that parses INI files into nested dictionaries, with docstrings and errors "
        "that name the line.",
        "Call the function `read_ini`.",
    ),
}


@dataclass(frozen=True, slots=True)
class Item:
    """One question.

    prediction: None is what the question `before` got.
    """

    kind: str
    name: str
    question: str
    prediction: str | None = None
    before: str = ""


def items(limit: int | None = None) -> list[Item]:
    """All questions, of each kind those of the first `limit` files."""
    found: list[Item] = []
    for path, (old, new, explained, change) in list(FILES.items())[:limit]:
        text = (SOURCE / path).read_text("utf-8")
        for kind, wish in (
            ("rename", f"Rename every variable `{old}` to `{new}`."),
            ("docstring", f"Write a longer docstring for `{explained}`."),
            ("change", f"Change one thing: {change}."),
        ):
            code = f"```python\n{text}```"  # as the models here answer
            ask = f"{wish} Answer with the whole file and nothing else.\n\n{code}"
            found.append(Item(kind, Path(path).name, ask, code))
    for name, (question, wish) in list(AGAIN.items())[:limit]:
        found.append(Item("again", name, f"{question} {wish}", None, question))
    return found


def arguments(doc: str | None, tokens: int, limited: str) -> argparse.Namespace:
    """The options. doc: of the script; tokens: of an answer, at most, by default; limited: by --limit."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2, help="of each method; the fastest counts")
    parser.add_argument("-n", type=int, default=tokens, help="most tokens of each answer")
    parser.add_argument("--limit", type=int, help=limited)
    parser.add_argument("--threads", "-t", type=int)
    return parser.parse_args()


def write(name: str, target: str, draft: str | None, args: argparse.Namespace, rows: list[Any]) -> None:
    """Write the figures as JSON beside the other results."""
    document = {
        "models": {"target": Path(target).name, "draft": None if draft is None else Path(draft).name},
        "settings": {"runs": args.runs, "max_tokens": args.n, "threads": args.threads, "temperature": 0.0},
        "rows": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / name).write_text(json.dumps(document, indent=1) + "\n", "utf-8")


def main() -> int:
    args = arguments(__doc__, 768, "files and questions of each kind")
    pair = present_pair()
    target, draft = (MODEL, None) if pair is None else map(str, pair)
    config = EngineConfig(target, threads=args.threads)
    plain, auto = (
        LLM.from_pipeline(pipeline, shared=False)
        for pipeline in build_all(config, [NoneConfig(), AutoConfig(draft)])
    )
    rows = []
    for item in items(args.limit):
        rows.append(measured(plain, auto, item, args))
        print(table(rows[-1:]).splitlines()[-1], file=sys.stderr)
    write("prediction.json", target, draft, args, rows)
    print(table(rows))
    return 0 if all(row["identical"] for row in rows) else 1


def measured(plain: LLM, auto: LLM, item: Item, args: argparse.Namespace) -> dict[str, Any]:
    """The figures of one question."""
    params = SamplingParams(temperature=0.0, max_tokens=args.n, seed=0)
    prediction = item.prediction
    if prediction is None:
        prediction = answer(plain, item.before, params).text
    predicted = dataclasses.replace(params, draft_text=prediction)
    calls = {PLAIN: (plain, params), AUTO: (auto, params), PREDICTED: (auto, predicted)}
    best: dict[str, CompletionOutput] = {}
    identical = True
    for run in range(args.runs):
        for method in (*METHODS[run % 3 :], *METHODS[: run % 3]):
            llm, asked = calls[method]
            found = answer(llm, item.question, asked)
            known = next(iter(best.values()), found)
            identical = identical and found.token_ids == known.token_ids
            if method not in best or speed(found) > speed(best[method]):
                best[method] = found
    return {
        "kind": item.kind,
        "name": item.name,
        "tokens": len(best[PLAIN].token_ids),
        "identical": identical,
        "finish_reason": best[PLAIN].finish_reason,
        "methods": {method: figures(best[method]) for method in METHODS},
    }


def answer(llm: LLM, question: str, params: SamplingParams) -> CompletionOutput:
    (output,) = llm.chat([{"role": "user", "content": question}], params)
    return output.outputs[0]


def speed(output: CompletionOutput) -> float:
    """Tokens per second after the first."""
    return output.metrics.decode_tokens_per_s or 0.0


def figures(output: CompletionOutput) -> dict[str, Any]:
    metrics = output.metrics
    return {
        "tokens_per_s": speed(output),
        "ttft_ms": metrics.ttft_ms,
        "tokens_per_pass": metrics.block_efficiency,
        "accepted_prediction_tokens": metrics.accepted_prediction_tokens,
        "rejected_prediction_tokens": metrics.rejected_prediction_tokens,
        "speculation": metrics.speculation,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The figures in Markdown, with the geometric means of each kind at the end."""
    lines = [
        "| question | tokens | plain, tokens/s | auto | predicted | tokens per pass | accepted, rejected |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        methods = row["methods"]
        base, predicted = methods[PLAIN]["tokens_per_s"], methods[PREDICTED]
        same = "" if row["identical"] else " (**texts differ**)"
        lines.append(
            f"| {row['kind']}: {row['name']}{same} | {row['tokens']} | {base:.1f} | "
            f"×{ratio(row, AUTO):.2f} | ×{ratio(row, PREDICTED):.2f} | {predicted['tokens_per_pass']:.1f} | "
            f"{predicted['accepted_prediction_tokens']}, {predicted['rejected_prediction_tokens']} |"
        )
    for kind in dict.fromkeys(row["kind"] for row in rows) if len(rows) > 1 else ():
        own = [row for row in rows if row["kind"] == kind]
        means = [mean(ratio(row, method) for row in own) for method in (AUTO, PREDICTED)]
        lines.append(f"| **{kind}**, mean | | | ×{means[0]:.2f} | ×{means[1]:.2f} | | |")
    return "\n".join(lines)


def ratio(row: dict[str, Any], method: str) -> float:
    """Speed-up over plain decoding."""
    return float(row["methods"][method]["tokens_per_s"] / row["methods"][PLAIN]["tokens_per_s"])


def mean(values: Iterable[float]) -> float:
    """Geometric."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


if __name__ == "__main__":
    sys.exit(main())
