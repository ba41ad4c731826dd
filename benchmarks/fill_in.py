"""Measures filling in: a function's body between what stands before and after it in a source file.

    python benchmarks/fill_in.py [--runs K] [-n N] [--limit N] [--threads N]

Bodies of functions are left out, one at a time, and filled in by plain decoding and by `auto`, interleaved,
on the Qwen pair (in the cache, or in the folder OUTRIDER_DEV_MODELS). Drafts come from the draft model and
from lookups in the rest of the file. Writes benchmarks/results/fill_in.json and prints a table. Returns 1
when `auto` changed a token.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path
from typing import Any

from outrider.cli.demo import present_pair
from outrider.config.engine import EngineConfig
from outrider.config.speculative import AutoConfig, NoneConfig
from outrider.decoding.sampling.params import SamplingParams
from outrider.llm import LLM
from outrider.models.text import fim
from outrider.models.text.tokenizer import Tokenizer
from outrider.outputs import CompletionOutput
from outrider.pipeline import build_all
from prediction import AUTO, PLAIN, SOURCE, arguments, figures, mean, speed, write

FILES = ("policy/exploration.py", "policy/lookup_backoff.py", "drafters/ngram.py", "policy/token_rate.py")


def gaps(limit: int | None = None) -> list[tuple[str, str, str]]:
    """(file and function, what stands before its body, what after) of all functions of three lines or more
    below their docstring; of the first `limit` files."""
    found = []
    for path in FILES[:limit]:
        text = (SOURCE / path).read_text("utf-8")
        lines = text.splitlines(keepends=True)
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef):
                continue
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            if not body or node.end_lineno is None or node.end_lineno - body[0].lineno < 2:
                continue
            first, end = body[0].lineno - 1, node.end_lineno
            before = "".join(lines[:first]) + " " * body[0].col_offset
            found.append(
                (f"{Path(path).name}:{node.lineno} {node.name}", before, "\n" + "".join(lines[end:]))
            )
    return found


def main() -> int:
    args = arguments(__doc__, 128, "files")
    if (pair := present_pair()) is None:
        print("needs the Qwen pair: outrider pull qwen-coder-1.5b qwen-coder-0.5b", file=sys.stderr)
        return 1
    target, draft = map(str, pair)
    config = EngineConfig(target, threads=args.threads)
    pipelines = build_all(config, [NoneConfig(), AutoConfig(draft)])
    tokenizer = pipelines[0].tokenizer
    plain, auto = (LLM.from_pipeline(pipeline, shared=False) for pipeline in pipelines)
    rows = []
    for name, before, after in gaps(args.limit):
        rows.append({"name": name, **measured({PLAIN: plain, AUTO: auto}, tokenizer, before, after, args)})
        print(table(rows[-1:]).splitlines()[-1], file=sys.stderr)
    write("fill_in.json", target, draft, args, rows)
    print(table(rows))
    return 0 if all(row["identical"] for row in rows) else 1


def measured(
    llms: dict[str, LLM], tokenizer: Tokenizer, before: str, after: str, args: argparse.Namespace
) -> dict[str, Any]:
    """The figures of one gap."""
    tokens = fim.needed(fim.fim_tokens(tokenizer))
    prompt = fim.fim_prompt(tokenizer, tokens, before, after)
    params = SamplingParams(temperature=0.0, max_tokens=args.n, seed=0, stop_token_ids=sorted(tokens.ends))
    best: dict[str, CompletionOutput] = {}
    identical = True
    for run in range(args.runs):
        for method in (PLAIN, AUTO) if run % 2 == 0 else (AUTO, PLAIN):
            (output,) = llms[method].generate({"prompt_token_ids": prompt}, params)
            found = output.outputs[0]
            identical = identical and found.token_ids == best.get(PLAIN, found).token_ids
            if method not in best or speed(found) > speed(best[method]):
                best[method] = found
    return {
        "prompt_tokens": len(prompt),
        "tokens": len(best[PLAIN].token_ids),
        "identical": identical,
        "methods": {method: figures(output) for method, output in best.items()},
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The figures in Markdown, with the geometric mean at the end."""
    lines = ["| gap | prompt | tokens | plain, tokens/s | auto |", "|---|---|---|---|---|"]
    speedups = []
    for row in rows:
        base = row["methods"][PLAIN]["tokens_per_s"]
        speedups.append(row["methods"][AUTO]["tokens_per_s"] / base if base else 1.0)
        same = "" if row["identical"] else " (**texts differ**)"
        lines.append(
            f"| {row['name']}{same} | {row['prompt_tokens']} | {row['tokens']} | {base:.1f} | "
            f"×{speedups[-1]:.2f} |"
        )
    if len(rows) > 1:
        lines.append(f"| **mean** | | | | ×{mean(speedups):.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
