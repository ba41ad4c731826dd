"""Starts the servers that serve.py measures: Outrider's, and llama.cpp's from the package xllamacpp or as a
program of its own, llama-server.

Run as a script, by an interpreter that has xllamacpp, this file is llama.cpp's server.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

START_SECONDS = 300.0  # for loading a model
END_SECONDS = 20.0
OUTRIDER = "import sys; from outrider.cli.main import main; sys.exit(main())"
READY = re.compile(r"listening on (http://\S+)")


class Served:
    """A running server process, with its log in a file.

    url:    its address, after `wait`.
    peer:   whether it is another server than Outrider's.
    fields: request fields with which the server reports the number of tokens during a stream.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        fields: dict[str, Any],
        *,
        peer: bool = False,
        about: str = "",
    ) -> None:
        self.name, self.peer, self.fields, self._about = name, peer, fields, about
        self._log = tempfile.NamedTemporaryFile("w+b", prefix="serve-", suffix=".log")  # noqa: SIM115
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=self._log, stderr=subprocess.STDOUT
        )
        self.url = self._last_log = ""

    def wait(self) -> None:
        """Wait until the server listens. Raises SystemExit, with the end of its log, when it does not
        start."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            if (found := READY.search(self.log())) is not None:
                self.url = found[1].rstrip("/")
                return
            time.sleep(0.05)
        self.process.kill()
        raise SystemExit(f"{self.name} did not start:\n{self.log()[-2000:]}")

    def log(self) -> str:
        """The whole log."""
        return self._last_log if self._log.closed else Path(self._log.name).read_text("utf-8", "replace")

    @property
    def about(self) -> str:
        """llama.cpp's description of its build; empty for other servers."""
        found = re.search(r"^system: (.*)$", self.log(), re.M)
        return found[1].strip() if found else self._about

    def complaints(self) -> list[str]:
        """Lines of the log that report an error of the server."""
        return [line for line in self.log().splitlines() if re.match(r"ERROR|Traceback|\w*Error\b", line)]

    def stop(self) -> int:
        """Stop the server with SIGTERM, or SIGKILL if it does not end in time, and return its exit status.

        The log can still be read afterwards. A second call has no effect.
        """
        if self.process.stdin is not None:
            self.process.stdin.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self._last_log = self.log()
        self._log.close()
        return status


def outrider_server(
    name: str, model: str, *, slots: int, context: int, threads: int | None, flags: Sequence[str] = ()
) -> Served:
    """Start `outrider serve` with this interpreter."""
    command = [sys.executable, "-c", OUTRIDER, "serve", "-m", model, "--port", "0", "-np", str(slots)]
    command += ["-c", str(context), "--disable-log-requests", *flags]
    if threads is not None:
        command += ["-t", str(threads)]
    fields = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    return Served(name, command, fields)


def llama_server(
    name: str, program: str, model: str, *, slots: int, context: int, threads: int | None
) -> Served:
    """Start llama.cpp's server: the program itself if `program` is called llama-server, else by `program`, an
    interpreter that has xllamacpp. Neither speculates."""
    count, about = str(threads or os.cpu_count() or 1), ""
    if Path(program).name == "llama-server":
        shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        about = next(line for line in (shown.stdout + shown.stderr).splitlines() if "version" in line)
        command = [program, "-m", model, "--port", "0", "-np", str(slots), "-c", str(slots * context)]
        command += ["-t", count, "-tb", count]
    else:
        command = [program, __file__, "--model", model, "--slots", str(slots), "--context", str(context)]
        command += ["--threads", count]
    fields = {"stream_options": {"include_usage": True}, "timings_per_token": True}
    return Served(name, command, fields, peer=True, about=about)


def run_llama_server() -> None:
    """Run llama.cpp's server, without speculation, until stdin ends."""
    import xllamacpp  # type: ignore[import-not-found]

    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    for name in ("slots", "context", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.n_parallel, params.n_ctx = args.slots, args.slots * args.context
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
    params.verbosity = 1
    server = xllamacpp.Server(params)
    print("system:", xllamacpp.get_system_info(), flush=True)
    print("listening on", server.listening_address, flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    run_llama_server()
