"""The double's command: `serve MODEL …`."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from ...server import FakeVllm
from ...utils import FlexibleArgumentParser
from ..openai.cli_args import make_arg_parser


def main() -> int:
    """Serve until SIGTERM. The environment says what goes wrong."""
    assert sys.argv[1] == "serve"
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(sys.argv[2:])
    faults = set(os.environ.get("FAKE_VLLM", "").split())
    print(f"INFO loading {args.model_tag}", flush=True)
    if "dies" in faults:
        print("ValueError: not enough memory for the cache", file=sys.stderr, flush=True)
        return 3
    speculative = json.loads(args.speculative_config or "{}")
    server = FakeVllm(
        (args.served_model_name or [args.model_tag])[0],
        port=args.port,
        key=os.environ.get("VLLM_API_KEY", ""),
        speculative=speculative,
        faults=faults,
    )
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    with server:
        while not stopping or "deaf" in faults:
            time.sleep(0.02)
            if server.died:
                os.kill(os.getpid(), signal.SIGKILL)
    print("INFO bye", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
