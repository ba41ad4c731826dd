"""The process in which chat templates run. Started by chat.py as a script; imports nothing of outrider.

A template comes with a model file and may be hostile: jinja2's sandbox keeps it from Python's objects,
but not from looping or growing without end. A process can be limited in memory, and killed.

Protocol, one JSON document per line: {"seconds", "max_chars", "memory", "source"} once, answered by
{"ready": true}; then {"variables": {...}} for each rendering, answered by {"text"} or {"refused"} (the
template raised it for these messages) or {"failed"} (the template is at fault).
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
    """What `raise_exception` in a template raises."""


class Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def environment() -> ImmutableSandboxedEnvironment:
    """jinja2 set up as `transformers.apply_chat_template` does it, so that templates mean the same."""
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
    """One answer. Output beyond max_chars ends the rendering."""
    parts: list[str] = []
    size = 0
    for part in template.generate(variables):
        size += len(part)
        if size > max_chars:
            return {"failed": f"it wrote more than {max_chars} characters"}
        parts.append(part)
    return {"text": "".join(parts)}


def answer(source: str, cached: list[Template], variables: dict[str, Any], max_chars: int) -> dict[str, Any]:
    """Compile the template once, render it, and put whatever goes wrong in words."""
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
    """The template's line that raised, from the traceback that jinja2 rewrites."""
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
    """End this process if a rendering outlives its time and the parent is not there to kill it."""
    if not hasattr(signal, "alarm"):
        yield
        return
    signal.alarm(math.ceil(seconds) + 2)
    yield
    signal.alarm(0)


def serve(lines: IO[bytes], out: IO[bytes]) -> None:
    """Answer until the input ends."""

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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    serve(sys.stdin.buffer, sys.stdout.buffer)
