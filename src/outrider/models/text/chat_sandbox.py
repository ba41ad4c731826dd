"""The process in which chat templates run. chat.py starts it as a script; it imports nothing of outrider.

A template comes with a model file and may be malicious. jinja2's sandbox denies it access to Python's
objects, but does not prevent endless loops or unlimited output. A process can be killed and limited in
memory.

Protocol, one JSON document per line: {"seconds", "max_chars", "memory", "source"} once, answered by
{"ready": true}; then {"variables": {...}} for each rendering, answered by {"text"}, by {"refused"} (the
template called `raise_exception` for these messages) or by {"failed"} (an error in the template).
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import IO, Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class RefusedError(TemplateError):
    """Raised by `raise_exception` in a template."""


class Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def environment() -> ImmutableSandboxedEnvironment:
    """jinja2 set up as in `transformers.apply_chat_template`, so that templates give the same text."""
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    env.filters["tojson"] = to_json
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return env


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes, unlike jinja2's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def refuse(message: object) -> NoReturn:
    raise RefusedError(str(message))


def render(template: Template, variables: dict[str, Any], max_chars: int) -> dict[str, Any]:
    """The answer to one request. A rendering of more than `max_chars` characters is stopped and fails."""
    parts: list[str] = []
    size = 0
    for part in template.generate(variables):
        size += len(part)
        if size > max_chars:
            return {"failed": f"it wrote more than {max_chars} characters"}
        parts.append(part)
    return {"text": "".join(parts)}


def answer(source: str, cached: list[Template], variables: dict[str, Any], max_chars: int) -> dict[str, Any]:
    """Compile the template if `cached` is empty, and render it; any exception is described in the answer."""
    try:
        if not cached:
            cached.append(environment().from_string(source))
        return render(cached[0], variables, max_chars)
    except RefusedError as error:
        return {"refused": str(error)}
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        line = getattr(error, "lineno", None) or line_of(error)
        place = f" at line {line}" if line else ""
        return {"failed": f"{type(error).__name__}{place}{': ' + said if said else ''}"}


def line_of(error: BaseException) -> int | None:
    """The line of the template that raised the error, from the traceback as jinja2 rewrites it."""
    line, step = None, error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == "<template>":
            line = step.tb_lineno
        step = step.tb_next
    return line


def limit_memory(size: int) -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # not on every system
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (size, size))


@contextlib.contextmanager
def last_resort(seconds: float) -> Iterator[None]:
    """End this process if a rendering exceeds its time and the parent process did not kill it."""
    if not hasattr(signal, "alarm"):
        yield
        return
    signal.alarm(math.ceil(seconds) + 2)
    yield
    signal.alarm(0)


def serve(lines: IO[bytes], out: IO[bytes]) -> None:
    """Answer requests until the input ends."""

    def send(document: dict[str, Any]) -> None:
        out.write(json.dumps(document).encode() + b"\n")
        out.flush()

    setup = json.loads(lines.readline())
    limit_memory(setup["memory"])
    send({"ready": True})
    cached: list[Template] = []
    for line in lines:
        with last_resort(setup["seconds"]):
            found = answer(setup["source"], cached, json.loads(line)["variables"], setup["max_chars"])
        send(found)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    serve(sys.stdin.buffer, sys.stdout.buffer)
