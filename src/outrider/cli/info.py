"""`outrider info`: what a model is, without loading it."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import replace
from typing import Any

from outrider import memory
from outrider.cli.parser import Parser, Subparsers
from outrider.errors import DownloadError
from outrider.models.open import open_model
from outrider.models.source import ModelSource
from outrider.models.sources.download import human
from outrider.models.sources.references import resolve
from outrider.models.text.fim import fim_tokens
from outrider.models.text.tokenizer import Tokenizer


def add_parser(subparsers: Subparsers) -> Parser:
    """Add the `info` command; `args.run` is `run`."""
    parser = subparsers.add_parser(
        "info",
        help="show what a model is",
        description="Show a model's family, weights, context, vocabulary and memory; nothing is fetched.",
    )
    parser.add_argument("model", metavar="MODEL", help="path, name or reference")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Do what the parsed arguments ask; returns 0. Raises OutriderError."""
    found = document(open_present(args.model))
    print(json.dumps(found, ensure_ascii=False) if args.json else text(found))
    return 0


def open_present(reference: str) -> ModelSource:
    """A model that is on this machine; fetches nothing. Raises ModelError, which says how to fetch it."""
    try:
        path = resolve(reference, offline=True, progress=False)
    except DownloadError as error:
        raise DownloadError(f"{error} (`outrider pull {reference}` fetches it)") from None
    return open_model(path)


def document(source: ModelSource) -> dict[str, Any]:
    """What `--json` prints; sizes in bytes."""
    spec, tokenizer = source.architecture, Tokenizer.from_data(source.tokenizer)
    needed = memory.estimate(source, spec.max_positions)
    return {
        "name": source.display_name,
        "path": str(source.path),
        "format": source.format,
        "family": spec.name,
        "parameters": sum(_count(tensor.shape) for tensor in source.tensors.values()),
        "weights": {"bytes": source.weights_bytes, "types": weight_types(source)},
        "layers": spec.n_layers,
        "hidden_size": spec.hidden_size,
        "heads": spec.n_heads,
        "kv_heads": spec.n_kv_heads,
        "context": spec.max_positions,
        "longest_context": spec.long_positions,
        "vocabulary": {"size": spec.vocab_size, "tokenizer": source.tokenizer.kind},
        "chat_template": bool(source.chat_template),
        "fim": fim_tokens(tokenizer) is not None,
        "memory": {
            "weights": needed.weights,
            "buffers": needed.buffers,
            "cache": needed.cache,
            "cache_q8_0": memory.kv_bytes(replace(spec, kv_type="q8_0"), spec.max_positions),
            "tokenizer": needed.vocabulary,
            "total": needed.total,
        },
    }


def text(found: dict[str, Any]) -> str:
    """The document as lines for a reader."""
    weights, needed = found["weights"], found["memory"]
    types = ", ".join(f"{name} ({human(size)})" for name, size in weights["types"].items())
    rows = {
        "name": found["name"],
        "path": found["path"],
        "family": f"{found['family']}, {found['layers']} layers",
        "parameters": f"{found['parameters'] / 1e6:,.1f} million",
        "weights": f"{human(weights['bytes'])} {found['format']}: {types}",
        "context": f"{found['context']} tokens"
        + (f", up to {longest} with -c" if (longest := found["longest_context"]) > found["context"] else ""),
        "vocabulary": f"{found['vocabulary']['size']} tokens ({found['vocabulary']['tokenizer']})",
        "chat template": "yes"
        if found["chat_template"]
        else "no: give one with --chat-template, or complete raw",
        "fill in the middle": "yes" if found["fim"] else "no",
        "memory": f"{human(needed['total'])} with a full context: weights {human(needed['weights'])}, "
        f"cache {human(needed['cache'])} "
        f"({human(needed['cache_q8_0'])} with --kv-quantization q8_0), buffers {human(needed['buffers'])}, "
        f"tokenizer {human(needed['tokenizer'])}",
    }
    return "\n".join(f"{name:<20}{value}" for name, value in rows.items())


def weight_types(source: ModelSource) -> dict[str, int]:
    """Bytes of the tensors by ggml type, the most first."""
    sizes: Counter[str] = Counter()
    for tensor in source.tensors.values():
        sizes[tensor.type] += tensor.stored_bytes
    return dict(sizes.most_common())


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
