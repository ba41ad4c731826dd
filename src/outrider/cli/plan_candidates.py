"""`outrider plan --candidates`: ranks draft models of a folder, or of an organization on the hub."""

from __future__ import annotations

import functools
import json
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from outrider.cli.parser import Parser, number
from outrider.errors import ConfigError, DownloadError
from outrider.models.source import ModelSource
from outrider.models.sources.folder import models_in
from outrider.models.sources.references import is_offline
from outrider.plan import candidates
from outrider.plan.candidates import Offer
from outrider.plan.document import USUAL_ACCEPTANCE, Pair

HUB = "hf:"  # before an organization


def add_flags(parser: Parser) -> None:
    """Add --candidates and --acceptance."""
    add = parser.add_argument
    add("--candidates", metavar="DIR|hf:ORG",
        help="rank the models of a folder, or of an organization on the hub, as drafts")  # fmt: skip
    add("--acceptance", type=number, metavar="A",
        help="of --candidates: assume this acceptance, 0 to 1, whatever is on record "
        f"(default: what is on record, else {USUAL_ACCEPTANCE})")  # fmt: skip


def check(args: Namespace, engine: str) -> None:
    """Raise ConfigError for flags that do not go together. engine: that the plan is for."""
    if args.candidates is None:
        if args.acceptance is not None:
            raise ConfigError("--acceptance needs --candidates; plan shows several acceptances anyway")
        return
    if args.model_draft is not None:
        raise ConfigError("give either -md or --candidates, not both")
    if engine != "native":
        raise ConfigError("--candidates ranks for the native engine on this machine's CPU")
    if args.acceptance is not None and not 0.0 <= args.acceptance <= 1.0:
        raise ConfigError(f"--acceptance must be from 0 to 1, not {args.acceptance:g}")


def run(args: Namespace, pair: Pair, opened: Callable[[str], ModelSource]) -> int:
    """Rank, and print. Returns 0, or 1 when none can draft. opened: a model by its reference, described by
    its headers. Raises OutriderError."""
    offers = [Offer(name, functools.partial(opened, name)) for name in _references(args.candidates)]
    from outrider.plan.curves import curve_of  # the compiled extension

    with tqdm(file=sys.stderr, disable=not sys.stderr.isatty(), bar_format="{desc}") as bar:
        found = candidates.document(
            pair,
            offers,
            curve_of,
            USUAL_ACCEPTANCE if args.acceptance is None else args.acceptance,
            stated_for_all=args.acceptance is not None,
            on_offer=bar.set_description,
        )
    print(json.dumps(found, ensure_ascii=False) if args.json else candidates.text(found))
    return 0 if found["candidates"] else 1


def _references(place: str) -> list[str]:
    """The models of a folder, or of an organization on the hub. Raises ConfigError, ModelNotFoundError and
    DownloadError."""
    if place.startswith(HUB):
        if is_offline():
            raise DownloadError(
                f"--candidates {place}: offline; what is on the hub can be listed online only"
            )
        from outrider.models.sources.hub_organization import repositories

        return [f"{HUB}{name}" for name in repositories(place.removeprefix(HUB), candidates.MOST)]
    folder = Path(place).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"--candidates: there is no folder {place!r}")
    found = models_in(folder)
    if not found:
        raise ConfigError(f"--candidates: the folder {place!r} holds no model")
    return [str(path.absolute()) for path in found]
