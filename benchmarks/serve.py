"""Measures the server under load against plain decoding and llama.cpp's server, and runs a soak test.

    python benchmarks/serve.py [-m MODEL] [--peer llama.cpp=PYTHON] [--parts load,prefill,prefix]
    python benchmarks/serve.py --soak 10000 [--seconds 3600]

PYTHON is an interpreter that has the package xllamacpp, or a built llama-server.

load:    1 to 16 clients send the built-in workloads, greedy. The servers are interleaved, level by level, so
that
         other load slows all of them alike. Finished parts are kept in a journal, so an interrupted
         measurement can be resumed.
prefill: how much slower running streams become during the prefill of a prompt of 4096 tokens.
prefix:  the time to the first token when a system prompt of 1024 tokens is in the prefix cache.
soak:    clients that disconnect, cancel, send malformed requests or read slowly, on a server with several
keys.
         Every answer is compared with that of plain decoding of one request at a time, and memory must not
         grow.

Writes benchmarks/results/serve.json (serve_soak.json); `--docs` puts the table into docs/server.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path

import serve_load
import serve_pool
from outrider.bench import machine
from outrider.cli.demo import MODEL
from serve_servers import outrider_server
from serve_soak import KEYS, Soak, Tally, expected

RESULTS = Path(__file__).resolve().parent / "results"
BODY_BYTES = 1 << 20  # the limit of the soak's server
CONTEXT = 1024
# These caches are small enough to be full after the warm-up, so that any later growth of memory is a leak.
PREFIX_CACHE = "96M"
KEPT_OUTPUTS = 1000


def soak(
    model: str,
    requests: int,
    seconds: float = 0.0,
    *,
    cases: int = 140,
    clients: int = 16,
    threads: int | None = None,
    seed: int = 0,
    prefix_cache: str = PREFIX_CACHE,
    kept_outputs: int = KEPT_OUTPUTS,
) -> Tally:
    """Start the reference server and the shared one, run the soak, and stop them."""
    chosen = serve_pool.pool(cases, seed)
    flags = ["--api-key", *KEYS, "--max-body-bytes", str(BODY_BYTES), "--max-waiting", "10"]
    lookup = json.dumps({"method": "auto", "suffix_decoding_max_cached_requests": kept_outputs})
    flags += ["--speculative-config", lookup, "--stall-timeout", "20", "--prefix-cache", prefix_cache]
    plain = ["--spec", "none", "--prefix-cache", "0"]
    alone = outrider_server("alone", model, slots=1, context=CONTEXT, threads=threads, flags=plain)
    shared = outrider_server("shared", model, slots=8, context=CONTEXT, threads=threads, flags=flags)
    try:
        alone.wait()
        answers = asyncio.run(expected(alone.url, chosen))
        alone.stop()
        distinct = len({str(answer.choices) for answer in answers})
        print(f"{cases} answers without company, {distinct} of them distinct", file=sys.stderr)
        shared.wait()
        run = Soak(
            shared.url,
            shared.process.pid,
            chosen,
            answers,
            clients=clients,
            context=CONTEXT,
            body_bytes=BODY_BYTES,
            seed=seed,
        )
        tally = asyncio.run(run.run(requests, seconds))
    finally:
        alone.stop()
        status = shared.stop()
    if status != 0:
        tally.fault("exit status", f"{status}: {shared.log()[-500:]}")
    for line in shared.complaints():
        tally.fault("error in the log", line)
    return tally


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", default=MODEL)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument(
        "--soak", type=int, metavar="REQUESTS", help="run the soak test with at least so many requests"
    )
    parser.add_argument("--seconds", type=float, default=0.0, help="run the soak for at least so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    serve_load.add_arguments(parser)
    return parser.parse_args()


def main() -> int:
    """Measure and print. Returns 1 when the soak fails, or when an answer was lost or changed under load."""
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are stopped too
    if args.soak is None:
        return serve_load.run(args, args.json or RESULTS / "serve.json")
    tally = soak(args.model, args.soak, args.seconds, threads=args.threads, seed=args.seed)
    document = {"machine": machine.describe(args.threads), "model": Path(args.model).name, **tally.document()}
    path = args.json or RESULTS / "serve_soak.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
    for (habit, came), n in sorted(tally.outcomes.items()):
        print(f"{habit:10} {came:12} {n}")
    for line in tally.told:
        print(line)
    print(tally.verdict())
    return 0 if tally.passed else 1


if __name__ == "__main__":
    sys.exit(main())
