"""`outrider list` and `outrider rm`: the models in the cache."""

from __future__ import annotations

import argparse
import json
import sys

from outrider.cli.parser import Subparsers
from outrider.errors import ConfigError, OutriderError
from outrider.models.sources.cached import CachedModel, cached_models, find, remove
from outrider.models.sources.download import cache_root, human


def add_parser(subparsers: Subparsers) -> None:
    """Add the commands `list` and `rm`."""
    listing = subparsers.add_parser(
        "list",
        aliases=["ls"],
        help="show the models in the cache",
        description="Show the models in the cache: name, size, type. (`outrider pull --list` shows what can "
        "be fetched by a short name.)",
    )
    listing.add_argument("--json", action="store_true", help="print one JSON document")
    _add_cache(listing)
    listing.set_defaults(run=run_list)
    removal = subparsers.add_parser(
        "rm", help="delete models from the cache", description="Delete models from the cache, after asking."
    )
    removal.add_argument("models", nargs="+", metavar="MODEL", help="a name that `outrider list` shows")
    removal.add_argument("-y", "--yes", action="store_true", help="do not ask")
    _add_cache(removal)
    removal.set_defaults(run=run_rm)


def run_list(args: argparse.Namespace) -> int:
    """Do what the parsed arguments ask; returns 0."""
    models = cached_models(args.cache_dir)
    if args.json:
        rows = [
            {"name": m.name, "bytes": m.size, "type": model_type(m), "path": str(m.path), "shared": m.shared}
            for m in models
        ]
        print(json.dumps({"cache": str(cache_root(args.cache_dir)), "models": rows}, ensure_ascii=False))
        return 0
    if not models:
        print(
            f"no models in {cache_root(args.cache_dir)}; `outrider pull smollm2` fetches one", file=sys.stderr
        )
    width = max((len(model.name) for model in models), default=0)
    for model in models:
        print(f"{model.name:<{width}}  {human(model.size):>8}  {model_type(model)}")
    return 0


def run_rm(args: argparse.Namespace) -> int:
    """Do what the parsed arguments ask; returns 0, or 1 if the answer was no. Raises OutriderError."""
    models = [find(name, args.cache_dir) for name in dict.fromkeys(args.models)]  # all, before the first goes
    for model in models:
        print(f"{model.name}  {human(model.size)}  {model.path}", file=sys.stderr)
    if not args.yes and not _agreed(models):
        return 1
    for model in models:
        try:
            freed = remove(model)
        except OSError as error:
            raise ConfigError(f"{model.name} cannot be deleted: {error.strerror or error}") from None
        print(f"deleted {model.name} ({human(freed)})")
    return 0


def model_type(model: CachedModel) -> str:
    """The format and the weights' most frequent type, such as "GGUF Q4_K"; of a damaged file, that."""
    from outrider.cli.info import weight_types
    from outrider.models.open import open_model

    try:
        types = weight_types(open_model(model.path))
    except OutriderError:
        return f"{model.kind}, cannot be used here (see outrider info)"
    return f"{model.kind} {next(iter(types))}"


def _agreed(models: list[CachedModel]) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError("rm asks before it deletes, and stdin is no terminal: give -y to delete without")
    shared = (
        " (some are in the hub's cache, which other programs use too)"
        if any(m.shared for m in models)
        else ""
    )
    print(
        f"delete {len(models)} model{'s' * (len(models) > 1)}{shared}? [y/N] ",
        end="",
        file=sys.stderr,
        flush=True,
    )
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cache-dir", metavar="DIR", help="use this folder instead of the default cache")
