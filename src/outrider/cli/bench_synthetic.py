"""`outrider bench --synthetic`: the speed of models that are not here, by their shapes."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from tqdm import tqdm

from outrider import memory
from outrider.cli import options
from outrider.cli.bench_output import check_writable, output
from outrider.errors import ConfigError, nearest
from outrider.models.quantization import for_draft, quantized
from outrider.opening import head_on
from outrider.plan.expected import rates_of
from outrider.plan.profiles import Profile, profiles
from outrider.plan.shapes import shape_head, shape_source


def synthetic(args: argparse.Namespace) -> int:
    """`--synthetic`: real passes over random weights of given shapes. Returns 0."""
    name, _ = options.target(args)
    runs = 2 if args.runs is None else args.runs
    for flag, value, least in (("--runs", runs, 1), ("-n", args.n_predict, 2)):
        if value < least:
            raise ConfigError(f"{flag} must be at least {least}, not {value}")
    for flag, given in (("--methods", args.methods), ("--workload", args.workload), ("--plot", args.plot)):
        if given is not None:
            raise ConfigError(f"{flag} has no meaning with --synthetic, which writes no text")
    check_writable(args)
    wanted = _names(args.acceptance)

    from outrider.bench import synthetic as measured  # the compiled extension

    acceptances = [
        measured.Acceptance.of(each)
        if isinstance(each, float)
        else measured.Acceptance(each.name, *_of(each))
        for each in wanted
    ]

    target = shape_source(name)
    head = None if args.model_draft is None else shape_head(args.model_draft)
    draft = None
    if head is not None:
        head = head_on(head, target)
        draft = head.source
    elif args.model_draft is not None:
        draft = shape_source(args.model_draft)
        draft = quantized(draft, for_draft("auto", draft, target))
    # Weights are in memory twice while the engine packs them, as there is no file to map.
    parts = [
        memory.estimate(source, args.n_predict + 256) for source in (target, draft) if source is not None
    ]
    twice = [replace(part, weights=2 * part.weights) for part in parts[:1]] + parts[1:]
    memory.check(twice, args.n_predict + 256)
    settings = measured.Settings(acceptances, tokens=args.n_predict, runs=runs, threads=args.threads)
    with tqdm(file=sys.stderr, disable=not sys.stderr.isatty(), bar_format="{desc}") as bar:
        document = measured.measure(target, head or draft, settings, bar.set_description)
    output(document, measured.text, args.json)
    return 0


def _names(text: str) -> list[float | Profile]:
    """Probabilities and profiles of `--acceptance`. Raises ConfigError."""
    known = profiles()
    found: list[float | Profile] = []
    for part in (part.strip() for part in text.split(",")):
        try:
            value = known[part] if part in known else float(part)
        except ValueError:
            value = -1.0
        if not isinstance(value, Profile) and not 0.0 <= value <= 1.0:
            raise ConfigError(
                f"--acceptance must be numbers from 0 to 1 or recorded profiles, with commas between, not "
                f"{part!r}{nearest(part, known)}; the profiles are {', '.join(known)}"
            )
        found.append(value)
    return found


def _of(profile: Profile) -> tuple[tuple[float, ...], float]:
    """A profile's rates by position, and its mean rate."""
    texts = profile.texts
    tried = sum(sum(text.proposed) for text in texts)
    return rates_of(texts), sum(sum(text.accepted) for text in texts) / tried
