"""The measurements of serve.py: interleaved servers, the journal, the table."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import outrider
import serve_parts
from outrider.bench import machine
from outrider.bench.journal import Journal
from outrider.bench.report import markdown_table, markers, put_into
from outrider.bench.stats import median
from outrider.models.sources.references import resolve
from serve_servers import Served, llama_server, outrider_server

WHEN = ("before", "during", "after")  # of a long prompt
PARTS = ("load", "prefill", "prefix")
AUTO, PLAIN = "outrider", "outrider, plain"
CONTEXT = 8192
DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "server.md"
MARKS = markers("serve")
Key = tuple[str, ...]  # part, server, and for load the clients and the round; for the others the round


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("load, prefill and prefix").add_argument
    add(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help="an interpreter for llama.cpp's server, or that itself: see above",
    )
    add("--parts", type=_names, default=list(PARTS), metavar="PART,…", help=f"of {', '.join(PARTS)}")
    add("--clients", type=lambda s: [int(n) for n in s.split(",")], default=[1, 2, 4, 8, 16])
    add(
        "--slots",
        type=int,
        default=8,
        help="samples that share a pass, of every server (default: %(default)s)",
    )
    add("--limit", type=int, default=8, help="prompts of each workload at a level (default: %(default)s)")
    add(
        "-n", dest="max_tokens", type=int, default=128, help="most tokens of an answer (default: %(default)s)"
    )
    add("--rounds", type=int, default=2, help="turns of each server at each level (default: %(default)s)")
    add("--journal", type=Path, default=Path(__file__).resolve().parent / "results" / "serve.jsonl")
    add("--docs", action="store_true", help="put the table into docs/server.md")


def _names(text: str) -> list[str]:
    found = [name.strip() for name in text.split(",")]
    if unknown := [name for name in found if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(PARTS)}")
    return found


def starters(args: argparse.Namespace) -> dict[str, Callable[[], Served]]:
    """How to start each server, by name."""
    shape = {"slots": args.slots, "context": CONTEXT, "threads": args.threads}
    plain = ["--spec", "none"]
    found: dict[str, Callable[[], Served]] = {
        AUTO: lambda: outrider_server(AUTO, args.model, **shape),
        PLAIN: lambda: outrider_server(PLAIN, args.model, **shape, flags=plain),
    }
    for given in args.peer:
        name, sign, python = given.partition("=")
        if not sign or name in found:
            raise SystemExit(f"--peer {given!r} is not NAME=PYTHON, with a name of its own")
        found[name] = lambda name=name, python=python: llama_server(  # type: ignore[misc]
            name, python, str(_file(args.model)), **shape
        )
    return found


def _file(model: str) -> Path:
    """The file of a model, for servers that do not know Outrider's model names."""
    return resolve(model)


def turns(args: argparse.Namespace, names: Sequence[str]) -> list[Key]:
    """All measurements in their order: the servers alternate within each level."""
    found: list[Key] = []
    for number in range(args.rounds):
        order = names if number % 2 == 0 else names[::-1]
        levels = [str(n) for n in args.clients] if "load" in args.parts else []
        found += [("load", name, clients, str(number)) for clients in levels for name in order]
        for part in ("prefill", "prefix"):
            if part in args.parts:
                found += [(part, name, str(number)) for name in order]
    return found


def measure(server: Served, key: Key, args: argparse.Namespace) -> dict[str, Any]:
    """One measurement of a server, with the machine's speed before and after it."""
    before = machine.probe()
    if key[0] == "load":
        found = serve_parts.load(server, int(key[2]), args.limit, args.max_tokens, f"{key[2]}-{key[3]}")
    elif key[0] == "prefill":
        found = serve_parts.prefill(server, f"round {key[-1]}:")
    else:
        found = serve_parts.prefix(server, f"round {key[-1]}", repeats=3)
    after = machine.probe()
    return {**found, "about": server.about, "probe": before, "drift": round(machine.drift(before, after), 3)}


def run(args: argparse.Namespace, path: Path) -> int:
    """Measure what the journal lacks, write the results and print them. Returns 1 when an answer was lost or
    changed by speculation."""
    if args.slots <= serve_parts.STREAMS and "prefill" in args.parts:
        raise SystemExit(f"prefill needs more than {serve_parts.STREAMS} --slots")
    start = starters(args)
    settings = {
        **{"outrider": outrider.__version__, "model": Path(args.model).name, "servers": list(start)},
        **{name: getattr(args, name) for name in ("threads", "slots", "limit", "max_tokens")},
    }
    journal = Journal(args.journal, settings)
    wanted = turns(args, list(start))
    todo = [key for key in wanted if key not in journal]
    print(f"{len(wanted)} turns, {len(wanted) - len(todo)} of them in {args.journal.name}", file=sys.stderr)
    with ExitStack() as stack:
        servers: dict[str, Served] = {}
        for name in dict.fromkeys(key[1] for key in todo):
            servers[name] = start[name]()
            stack.callback(servers[name].stop)
            servers[name].wait()  # one after another, as each measures its cost curve at the start
            serve_parts.warm_up(servers[name])
        began = time.monotonic()
        for done, key in enumerate(todo, start=1):
            found = measure(servers[key[1]], key, args)
            journal.add(key, found)
            left = (time.monotonic() - began) / done * (len(todo) - done) / 60
            print(f"{', '.join(key)}: {_brief(found)}; {left:.0f} minutes left", file=sys.stderr, flush=True)
    document = summary({key: journal[key] for key in wanted}, args)
    document = {"machine": machine.describe(args.threads), "settings": settings, **document}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
    text = rendered(document)
    print(text)
    if args.docs:
        put_into(DOCUMENT, *MARKS, f"\n{text}\n")
    return 0 if document["lost"] == 0 and document["identical"] else 1


def _brief(found: Mapping[str, Any]) -> str:
    probe = f"probe {found['probe']['read_gb_per_s']:.1f} GB/s, drift {found['drift']:.0%}"
    if "tokens_per_s" in found:
        ttft, itl = found["ttft_ms"], found["itl_ms"]
        return (
            f"{found['tokens_per_s']:.1f} tokens/s, TTFT {ttft['p50']:.0f} / {ttft['p99']:.0f} ms, "
            f"ITL {itl['p50']:.1f} / {itl['p99']:.1f} ms, {probe}"
        )
    return f"ratio {found['ratio']:.3f}, {probe}"


def summary(found: Mapping[Key, Mapping[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    """Medians over the rounds, the number of lost answers, and whether speculation changed a text."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for key, value in found.items():
        groups.setdefault(key[:-1], []).append(value)
    load = [
        {
            **{"clients": int(key[2]), "server": key[1], "tokens_per_s": _median(rounds, "tokens_per_s")},
            **{
                name: {p: _median([r[name] for r in rounds], p) for p in ("p50", "p99")}
                for name in ("ttft_ms", "itl_ms", "tpot_ms")
            },
            "answered": sum(r["answered"] for r in rounds),
            "probe_gb_per_s": round(median(r["probe"]["read_gb_per_s"] for r in rounds), 2),
            "drift": max(r["drift"] for r in rounds),
        }
        for key, rounds in groups.items()
        if key[0] == "load"
    ]
    others = {
        part: {
            key[1]: {
                k: round(median(r[k] for r in rounds), 4)
                for k in rounds[0]
                if isinstance(rounds[0][k], int | float) and k != "drift"
            }
            | (
                {"rounds": [{k: r[k] for k in (*WHEN, "ttft_ms", "ratio", "drift")} for r in rounds]}
                if part == "prefill"
                else {}
            )
            for key, rounds in groups.items()
            if key[0] == part
        }
        for part in ("prefill", "prefix")
    }
    loads = {key: value for key, value in found.items() if key[0] == "load"}
    pairs = [
        (value["texts"], loads[("load", PLAIN, *key[2:])]["texts"])
        for key, value in loads.items()
        if key[1] == AUTO
    ]
    return {
        "servers": {key[1]: value["about"] for key, value in found.items()},
        "load": load,
        **others,
        "lost": sum(v["requests"] - v["answered"] for v in loads.values()),
        "compared": sum(len(mine) for mine, _ in pairs),
        "identical": all(mine == plain for mine, plain in pairs),
    }


def _median(rounds: Sequence[Mapping[str, Any]], name: str) -> float:
    return round(median(r[name] for r in rounds), 2)


def rendered(document: Mapping[str, Any]) -> str:
    """The tables of docs/server.md."""
    about, settings = document["machine"], document["settings"]
    most = settings["max_tokens"]
    parts = [
        f"{settings['model']}, {settings['threads'] or 'all'} threads, {settings['slots']} places, greedy, "
        f"{most // 2} to {most} tokens, {6 * settings['limit']} prompts at each level; "
        f"{about['cpu']}, {about['cores']} cores."
    ]
    if document["load"]:
        parts.append(_load_table(document["load"]))
        same = "the same" if document["identical"] else "NOT THE SAME"
        parts.append(
            f"Speculation on and off: {same} text in {document['compared']} answers; {document['lost']} lost."
        )
    if document["prefill"]:
        header = ["server", "before, ms", "during, ms", "after, ms", "ratio", "prompt's TTFT, s"]
        rows = [
            [
                name,
                *(f"{median(r[w]['gap_ms']['mean'] for r in v['rounds']):.1f}" for w in WHEN),
                f"{v['ratio']:.2f}",
                f"{v['ttft_ms'] / 1e3:.1f}",
            ]
            for name, v in document["prefill"].items()
        ]
        what = "before, while and after 4096 tokens are read"
        parts += [f"Time between two events of four running streams, {what}:"]
        parts += [markdown_table([header, *rows])]
    if document["prefix"]:
        header = ["server", "first, ms", "second, ms", "ratio"]
        rows = [
            [name, f"{v['first_ms']:.0f}", f"{v['second_ms']:.0f}", f"{v['ratio']:.3f}"]
            for name, v in document["prefix"].items()
        ]
        parts += ["Time to the first token of two requests with the same system prompt of 1024 tokens:"]
        parts += [markdown_table([header, *rows])]
    return "\n\n".join(parts)


def _load_table(load: Sequence[Mapping[str, Any]]) -> str:
    header = [
        "clients",
        "server",
        "tokens/s",
        "TTFT p50 / p99, ms",
        "ITL p50 / p99, ms",
        "TPOT p50, ms",
        "probe, GB/s",
    ]
    rows = [
        [
            str(r["clients"]), r["server"], f"{r['tokens_per_s']:.1f}",
            f"{r['ttft_ms']['p50']:.0f} / {r['ttft_ms']['p99']:.0f}",
            f"{r['itl_ms']['p50']:.1f} / {r['itl_ms']['p99']:.1f}",
            f"{r['tpot_ms']['p50']:.1f}", f"{r['probe_gb_per_s']:.1f}",
        ]
        for r in load
    ]  # fmt: skip
    return markdown_table([header, *rows])
