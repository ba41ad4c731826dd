"""`outrider demo`: a real target under `auto` beside plain decoding: time, tokens, identity."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.bench import stats, workloads
from outrider.bench.summary import Run
from outrider.bench.workloads import Item
from outrider.cli.parser import Parser, Subparsers, integer
from outrider.config.engine import EngineConfig
from outrider.config.speculative import AutoConfig, NoneConfig
from outrider.decoding.sampling.params import SamplingParams
from outrider.errors import ConfigError

MODEL = "smollm2"
HEAD: str | None = "smollm2-head"  # comes with the package
PAIR = ("qwen-coder-1.5b", "qwen-coder-0.5b")
PAIR_SIZE = "1.6 GB"
# A question, code, an extraction, and an edit that copies most of its prompt.
PROMPTS = ("chat-tea", "code-primes", "extract-orders", "edit-port")
SOURCES = {
    "suffix": "lookups",
    "draft_model": "draft model",
    "eagle3": "head",
    "mixed": "both",
}  # as the table names them


def add_parser(subparsers: Subparsers) -> Parser:
    """Add the `demo` command; `args.run` is `run`."""
    parser = subparsers.add_parser(
        "demo",
        help="show what speculation does, on a model that it brings",
        description="Generate on a few prompts, plainly and with speculation, and compare time and tokens. "
        "Shows the Qwen 1.5B with its 0.5B draft model where they are in the cache, else SmolLM2 135M, which "
        "is fetched (98 MB), with lookups and an EAGLE-3 head that comes with Outrider.",
    )
    parser.add_argument(
        "-n", "--n-predict", type=integer, default=200, metavar="N", help="most tokens (default: %(default)s)"
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--pair", action="store_true", help=f"fetch the Qwen pair first ({PAIR_SIZE}, once)")
    choice.add_argument(
        "--no-pair", action="store_true", help="show the small model even where the pair is in the cache"
    )
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Do what the parsed arguments ask. Returns 0, or 1 when speculation changed a token. Raises
    OutriderError."""
    if args.n_predict < 1:
        raise ConfigError(f"-n must be at least 1, not {args.n_predict}")
    pair = None if args.no_pair else present_pair() or (_fetch_pair() if args.pair else None)
    if pair is not None:
        return 0 if _show(str(pair[0]), str(pair[1]), args.n_predict) else 1
    same = _show(MODEL, HEAD, args.n_predict)
    print(
        "\nThis small target was helped by lookups in its own text and by a head of one layer, which "
        "`outrider train` made. With a draft model:\n"
        f"  outrider demo --pair   fetches a 1.5B target and its 0.5B draft model ({PAIR_SIZE}, once)"
    )
    return 0 if same else 1


def present_pair() -> tuple[Path, Path] | None:
    """The Qwen target and draft, if they are in the cache or in OUTRIDER_DEV_MODELS; fetches nothing."""
    target, draft = map(present_model, PAIR)
    return None if target is None or draft is None else (target, draft)


def present_model(name: str) -> Path | None:
    """A model of the catalog, if it is in the cache, the hub's cache or OUTRIDER_DEV_MODELS; fetches
    nothing."""
    from outrider.models.sources.catalog import CATALOG
    from outrider.models.sources.download import cache_root
    from outrider.models.sources.known import KNOWN
    from outrider.models.sources.known_fetch import present_known
    from outrider.models.sources.pypi import catalog_path

    model = CATALOG[name]
    places = [catalog_path(model, cache_root())]
    if folder := os.environ.get("OUTRIDER_DEV_MODELS"):
        places.append(Path(folder) / model.file_name)
    found = next((p for p in places if p.is_file() and p.stat().st_size == model.size), None)
    return present_known(KNOWN[name], cache_root()) if found is None and name in KNOWN else found


def _fetch_pair() -> tuple[Path, Path]:
    from outrider.models.sources.references import resolve

    target, draft = (resolve(name, progress=True) for name in PAIR)
    return target, draft


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt, decoded plainly and under `auto`."""

    prompt: str
    plain: Run
    auto: Run

    @property
    def ratio(self) -> float:
        return self.plain.seconds / self.auto.seconds

    @property
    def same(self) -> bool:
        return self.plain.token_ids == self.auto.token_ids

    def cells(self) -> tuple[str, ...]:
        """The columns of HEADER."""
        count = len(self.plain.token_ids)
        return (
            _short(self.prompt, 38),
            str(count),
            f"{self.plain.seconds:.2f} s",
            f"{self.auto.seconds:.2f} s",
            f"x{self.ratio:.2f}",
            _drafted(self.auto),
            "yes" if self.same else "NO",
        )


HEADER = ("prompt", "tokens", "plain", "auto", "speed-up", "of them drafted by", "same tokens")


def _drafted(run: Run) -> str:
    """How many of the output's tokens each drafter guessed."""
    drafters = run.output.outputs[0].metrics.by_drafter
    found = [
        f"{counts.num_accepted_tokens} {SOURCES.get(name, name)}"
        for name, counts in drafters.items()
        if counts.num_accepted_tokens
    ]
    tried = sum(counts.num_draft_tokens for counts in drafters.values())
    return ", ".join(found) or (f"none of {tried} drafted" if tried else "none: nothing was drafted")


def _show(model: str, draft: str | None, max_tokens: int) -> bool:
    """Decode all prompts both ways, and print the table. Returns whether all tokens are the same."""
    from outrider.bench.interleaved import TimedMethod, run_interleaved
    from outrider.bench.runner import WARM_UP_TOKENS, prompt_of
    from outrider.pipeline import build_all

    pipelines = build_all(EngineConfig(model, max_num_seqs=2), [NoneConfig(), AutoConfig(model=draft)])
    methods = dict(zip(("plain", "auto"), map(TimedMethod, pipelines), strict=True))
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, seed=0)
    names = pipelines[1].models
    helper = "lookups"
    if draft is not None:
        helper += f" and {names['draft']}" + ("" if draft == HEAD else " as its draft model")
    print(
        f"{names['target']}, plainly and with {helper}.\n"
        f"Temperature 0, up to {max_tokens} tokens. Both ways take turns, token by token. "
        "The time is that of decoding.\n",
        flush=True,
    )
    items = [item for w in workloads.BUILT_IN for item in workloads.load(w) if item.id in PROMPTS]
    warm = SamplingParams(temperature=0.0, max_tokens=min(WARM_UP_TOKENS, max_tokens), seed=0)
    run_interleaved(methods, prompt_of(pipelines[0], items[0].prompt, raw=False), warm)
    rows = []
    for item in items:
        _progress(item)
        runs = run_interleaved(methods, prompt_of(pipelines[0], item.prompt, raw=False), params)
        rows.append(Row(item.prompt, runs["plain"], runs["auto"]))
    _progress(None)
    _print_table([HEADER, *(row.cells() for row in rows)])
    same = all(row.same for row in rows)
    print(
        f"\nSpeed-up, geometric mean: x{stats.geomean([row.ratio for row in rows]):.2f}. "
        + ("All tokens are the same." if same else "The tokens are NOT the same: please report it.")
    )
    return same


def _print_table(lines: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = list(map(str.rjust, line, widths))
        for text in (0, 5):
            cells[text] = line[text].ljust(widths[text])
        print("  ".join(cells).rstrip(), flush=True)


def _progress(item: Item | None) -> None:
    if sys.stderr.isatty():
        line = "" if item is None else f"{item.id} …"
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def _short(text: str, limit: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
