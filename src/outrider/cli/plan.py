"""`outrider plan`: what a pair of models needs and gives on this machine, before anything is loaded."""

from __future__ import annotations

import argparse
import json
import sys

from outrider import memory
from outrider.cli import plan_candidates, plan_endpoint, plan_gpu
from outrider.cli.info import open_present
from outrider.cli.options import size, target
from outrider.cli.parser import Parser, Subparsers, context_size, integer
from outrider.config.quantization import QUANTIZATIONS, kv_quantization
from outrider.draft_choice import AUTO, choose
from outrider.errors import ConfigError, DownloadError
from outrider.models.eagle3.head import Eagle3Head
from outrider.models.eagle3.open import open_head
from outrider.models.formats.shared_strings import shared_strings
from outrider.models.quantization import for_draft, held_as, quantized, with_kv_type
from outrider.models.source import ModelSource
from outrider.models.sources.known import KNOWN
from outrider.models.sources.references import is_offline, parse_reference, resolve
from outrider.opening import head_on
from outrider.pipeline import PLANNED_POSITIONS
from outrider.plan.document import Pair, document
from outrider.plan.memory_parts import fitting
from outrider.plan.shapes import shape_head, shape_source
from outrider.plan.text import text

SYNTHETIC = "synthetic:"  # before a shape, in the place of a model

_DESCRIPTION = """\
Show what a target needs and how fast it will be, with a draft model or without: memory by part, whether the
vocabularies agree, and the speed-up by acceptance. Weights are not read; speeds that were never measured here
are predicted from a few layers of the same shapes. A MODEL may be a shape, such as
synthetic:llama-3.1-8b:q4_k_m."""


def add_parser(subparsers: Subparsers) -> Parser:
    """Add the `plan` command; `args.run` is `run`."""
    parser = subparsers.add_parser(
        "plan",
        help="show what a pair of models needs and gives, before loading it",
        description=_DESCRIPTION,
    )
    add = parser.add_argument
    add("words", nargs="*", metavar="MODEL", help="the same as -m")
    add("-m", "--model", metavar="MODEL", help="target: path, name or reference")
    add("-md", "--model-draft", "--speculative-model", dest="model_draft", metavar="MODEL",
        help="draft model or EAGLE-3 head; auto: a draft model that is on this machine, or none")  # fmt: skip
    add("-c", "--ctx-size", "--max-model-len", dest="ctx_size", type=context_size, default=0, metavar="N",
        help=f"most tokens of a sequence (default: {PLANNED_POSITIONS} or the model's limit)")  # fmt: skip
    add("--slots", "-np", "--parallel", "--max-num-seqs", dest="slots", type=integer, default=1,
        metavar="N", help="sequences at a time (default: %(default)s)")  # fmt: skip
    add("--memory", "--memory-limit", dest="memory", type=size, metavar="SIZE",
        help="memory to plan for, such as 24GiB (default: what is free here)")  # fmt: skip
    add("-t", "--threads", type=integer, metavar="N",
        help="threads of the engine (default: its own choice)")  # fmt: skip
    add("--quantization", metavar="TYPE",
        help=f"of a float target at load: {' or '.join(QUANTIZATIONS)}; torchao or bitsandbytes "
        "with torch, fp8 with vLLM")  # fmt: skip
    add("--json", action="store_true", help="print one JSON document")
    plan_candidates.add_flags(parser)
    plan_gpu.add_flags(parser)
    plan_endpoint.add_flags(parser)
    parser.set_defaults(run=run)
    return parser


@shared_strings()
def run(args: argparse.Namespace) -> int:
    """Do what the parsed arguments ask; returns 0, or 1 when the pair does not fit. Raises OutriderError."""
    if args.endpoint is not None or args.against is not None:
        return plan_endpoint.run(args)
    for flag, value in (("--slots", args.slots), ("--threads", args.threads)):
        if value is not None and value < 1:
            raise ConfigError(f"{flag} must be 1 or more, not {value}")
    if args.ctx_size < -1:
        raise ConfigError(f"-c must be 0 or more, not {args.ctx_size}")
    engine = plan_gpu.check(args)
    plan_candidates.check(args, engine)
    name, _ = target(args)
    if args.candidates is not None:
        return plan_candidates.run(args, pair_of(args, _as_loaded(args, name)), _opened)
    if engine == "native":
        found = document(pair_of(args, _as_loaded(args, name)))
    else:
        source = quantized(_opened(name), args.quantization if engine == "torch" else None)
        pair = pair_of(args, source, as_stored=True)
        found = document(pair, place=plan_gpu.place_of(args, engine, pair))
    print(json.dumps(found, ensure_ascii=False) if args.json else text(found))
    return 0 if found["fits"] else 1


def pair_of(args: argparse.Namespace, source: ModelSource, *, as_stored: bool = False) -> Pair:
    """The pair of the arguments, its draft described as it would be loaded, or with its file's weights."""
    most = source.architecture.max_positions
    context = min(args.ctx_size if args.ctx_size > 0 else PLANNED_POSITIONS, most)
    if args.memory is not None:
        limit, why = args.memory, "as --memory says"
    else:
        limit, why = memory.available_bytes(), "free now, also by the control group's limit"
    draft, name = None, args.model_draft
    if name == AUTO:
        fits = fitting(source, context, args.slots, limit)
        if as_stored:  # whether a card holds both is what the plan will say
            fits = lambda _: None  # noqa: E731
        chosen = choose(source, source.tokenizer, fits, None if as_stored else "auto", heads=not as_stored)
        print(chosen.why, file=sys.stderr)
        name = None if chosen.path is None else str(chosen.path)
    if name is not None and (head := _head(name)) is not None:
        if as_stored:
            raise ConfigError(f"{name}: is an EAGLE-3 head, which is planned for the native engine only")
        draft = head_on(head, source).source
    elif name is not None:
        draft = _opened(name)
        if not as_stored:
            draft = held_as(source, quantized(draft, for_draft("auto", draft, source)))
    return Pair(source, draft, context, args.slots, limit, why, args.threads)


def _as_loaded(args: argparse.Namespace, name: str) -> ModelSource:
    """The target as the native engine would load it."""
    source = quantized(_opened(name), args.quantization)
    return with_kv_type(source, kv_quantization(args.cache_dtype))


def _head(reference: str) -> Eagle3Head | None:
    """The head of this name, if it is one: a shape, or files that are here."""
    if reference.startswith(SYNTHETIC):
        return shape_head(reference.removeprefix(SYNTHETIC))
    try:
        return open_head(resolve(reference, offline=True, progress=False))
    except DownloadError:
        return None


def _opened(reference: str) -> ModelSource:
    if reference.startswith(SYNTHETIC):
        return shape_source(reference.removeprefix(SYNTHETIC))
    try:
        return open_present(reference)
    except DownloadError:
        hub = parse_reference(reference)
        known = KNOWN.get(hub.name.lower()) if hub.kind == "catalog" else None
        if known is not None:
            hub = parse_reference(known.reference)
        if hub.kind != "hub" or is_offline():
            raise
    from outrider.models.sources.hub_headers import open_headers

    return open_headers(hub.name, hub.file, hub.revision)
