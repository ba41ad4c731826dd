"""Times the torch engine on the CPU beside transformers' `generate`, plain and with the same draft model.

    python benchmarks/torch_cpu.py TARGET.gguf [DRAFT.gguf] [--dtype TYPE] [--kinds KIND …] [--json FILE]

The GGUF files are written as folders of float weights first, which both load. All ways of writing take turns
on each prompt, greedily and past any end of the text, with the prompt's own time counted; the least time of a
few rounds counts. Without a draft model drafts are looked up in the prompt: `ngram` here,
`prompt_lookup_num_tokens` there. transformers' assistant drafts as its own configuration says (20 tokens, or
until it is unsure). Last come prompts of 128, 512 and 2048 tokens, which are read, and one token written.
Writes results/torch_cpu.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.scripts.dequantize_folder import write_folder  # noqa: E402

from outrider import LLM, SamplingParams  # noqa: E402
from outrider.bench.machine import describe, drift, probe  # noqa: E402
from outrider.config.engine import parse_engine  # noqa: E402
from outrider.pipeline import build  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "torch_cpu.json"
PROMPTS = {
    "code": "Write a Python class for a queue of tasks with priorities, with docstrings and type hints.",
    "edit": "Repeat this function, with the name changed to mean:\n\ndef average(values):\n    total = 0\n"
    "    for value in values:\n        total += value\n    return total / len(values)\n",
    "chat": "Why is the sky blue in the day and red in the evening? Explain it to a child.",
}
READ = {f"prompt of {length}": length for length in (128, 512, 2048)}  # tokens

Write = Callable[[list[int], int], list[int]]
"""From (the prompt, how many tokens to write) to the tokens."""


def ours(folder: Path, draft: dict[str, Any], dtype: str, threads: int) -> LLM:
    config = parse_engine(
        str(folder),
        draft,
        engine="torch",
        device="cpu",
        dtype=dtype,
        threads=threads,
        max_model_len=max(READ.values()) + 64,
        max_num_seqs=1,
    )
    return LLM.from_pipeline(build(config, progress=False), shared=False)


def by_ours(llm: LLM) -> Write:
    def write(prompt: list[int], count: int) -> list[int]:
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        (output,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        return list(output.outputs[0].token_ids)

    return write


def by_transformers(model: Any, **more: Any) -> Write:
    def write(prompt: list[int], count: int) -> list[int]:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            found = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=count,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                **more,
            )
        return list(found[0, len(prompt) :].tolist())

    return write


def ways(folders: Sequence[Path], method: str, dtype: str, threads: int) -> dict[str, Write]:
    """All ways of writing, by name. method: with which a draft model is used here."""
    each = [
        transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        for folder in folders
    ]
    for model in each:
        model.generation_config.eos_token_id = None
    found = {
        "ours": by_ours(ours(folders[0], {"method": "none"}, dtype, threads)),
        "transformers": by_transformers(each[0]),
    }
    if len(folders) == 1:
        lookup = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2}
        found["ours, lookup"] = by_ours(ours(folders[0], lookup, dtype, threads))
        found["transformers, lookup"] = by_transformers(each[0], prompt_lookup_num_tokens=5)
        return found
    draft = {"method": method, "model": str(folders[1]), "quantization": None}
    found["ours, draft model"] = by_ours(ours(folders[0], draft, dtype, threads))
    found["transformers, assistant"] = by_transformers(each[0], assistant_model=each[1])
    return found


Figures = dict[str, dict[str, dict[str, float]]]
"""By prompt and way: tokens per second, and whether the text is the one that transformers writes plainly."""


def measure(found: dict[str, Write], prompts: dict[str, list[int]], tokens: int, rounds: int) -> Figures:
    """Each way on each prompt, in turns; its quickest time. Where one token is written, those that are read
    are counted."""
    figures: Figures = {}
    for kind, prompt in prompts.items():
        texts: dict[str, list[int]] = {}
        seconds = dict.fromkeys(found, float("inf"))
        for write in found.values():  # to warm up
            write(prompt[:8], 2)
        for _ in range(rounds):
            for name, write in found.items():
                began = time.perf_counter()
                texts[name] = write(prompt, tokens)
                seconds[name] = min(seconds[name], time.perf_counter() - began)
        figures[kind] = {
            name: {
                "tokens_per_second": round((tokens if tokens > 1 else len(prompt)) / seconds[name], 2),
                "same_text": texts[name] == texts["transformers"],
            }
            for name in found
        }
        print(kind, json.dumps(figures[kind]), flush=True)
    return figures


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path, nargs="?")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--method", choices=["auto", "draft_model"], default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--kinds", nargs="+", default=[*PROMPTS, *READ], choices=[*PROMPTS, *READ], help="of prompts"
    )
    parser.add_argument("--folders", type=Path, help="where the folders are kept for another run")
    parser.add_argument("--json", type=Path, default=RESULTS)
    args = parser.parse_args(given)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(args.threads)
    files = [file for file in (args.target, args.draft) if file is not None]
    with tempfile.TemporaryDirectory() as scratch:
        folders = []
        for file in files:
            folder = (args.folders or Path(scratch)) / f"{file.stem}-{args.dtype}"
            if not (folder / "model.safetensors").exists():
                write_folder(file, folder, {"float32": "F32", "bfloat16": "BF16"}[args.dtype])
            folders.append(folder)
        found = ways(folders, args.method, args.dtype, args.threads)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folders[0])
        prompts = {kind: tokenizer.encode(text) for kind, text in PROMPTS.items() if kind in args.kinds}
        before = probe()
        figures = measure(found, prompts, args.tokens, args.rounds)
        read = {
            kind: [7 + i % 1000 for i in range(length)] for kind, length in READ.items() if kind in args.kinds
        }
        plain = {name: found[name] for name in ("ours", "transformers")}
        figures |= measure(plain, read, 1, args.rounds)
        moved = drift(before, probe())
    kept = json.loads(args.json.read_text()) if args.json.exists() else {}
    of = kept.setdefault(f"{' + '.join(file.stem for file in files)}, {args.dtype}", {})
    of |= {
        "machine": describe(args.threads),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "tokens": args.tokens,
        "drift": {**of.get("drift", {}), **dict.fromkeys(figures, round(moved, 3))},
        "figures": {**of.get("figures", {}), **figures},
    }
    print(table(of["figures"]))
    args.json.write_text(json.dumps(kept, indent=1) + "\n")
    return 0


def table(figures: Figures) -> str:
    """Tokens per second by way and prompt, as Markdown."""
    names = list(dict.fromkeys(name for each in figures.values() for name in each))
    lines = [f"| | {' | '.join(figures)} |", "|---|" + "---|" * len(figures)]
    for name in names:
        cells = [
            "" if name not in each else f"{each[name]['tokens_per_second']:.1f}" for each in figures.values()
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
