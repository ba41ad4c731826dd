"""A server whose engine writes given texts, to test what dialects make of them; and chat templates that show
what they were given."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from outrider.decoding.events import Event, FinishEvent, TokenEvent
from outrider.decoding.metrics import RequestMetrics
from outrider.decoding.request import Request
from outrider.server.http.errors import ApiError
from tests.server.http_support import Running

TEMPLATE = (
    "{% if tools %}tools {{ tools | map(attribute='function') | map(attribute='name') | join(',') }};"
    "{% endif %}{% for m in messages %}[{{ m.role }}|"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}{ {{- c.function.name }} {{ c.function.arguments | tojson -}} }"
    "{% endfor %}]{% endfor %}"
    "{% if add_generation_prompt %}[assistant|{% endif %}"
)
THINKING = (
    TEMPLATE + "{# <think></think> #}{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}"
)


class ScriptedStream:
    """Stands for the engine's stream: the text of the first request in pieces of `size` characters, a few
    with each delivery."""

    def __init__(
        self, requests: Sequence[Request], text: str, *, reason: Any, stop: str | None, size: int, fails: bool
    ) -> None:
        name = requests[0].request_id
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        self._events: list[Event] = [TokenEvent(name, 5, piece, "bonus") for piece in pieces]
        metrics = RequestMetrics(arrived=1.0, first_token=1.25, last_token=1.75, cached_tokens=2)
        self._events.append(FinishEvent(name, reason, stop, "", metrics))
        self._fails = fails

    async def __aenter__(self) -> ScriptedStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def batch(self) -> list[Event]:
        if self._fails and len(self._events) == 1:
            raise ApiError(500, "the engine broke", code="engine_error")
        found, self._events = self._events[:3], self._events[3:]
        if len(found) > 1 and not self._events:  # the last event comes alone
            found, self._events = found[:-1], found[-1:]
        return found


@contextlib.contextmanager
def scripted(
    server: Running,
    *texts: str,
    reason: str = "stop",
    stop: str | None = None,
    size: int = 3,
    fails: bool = False,
) -> Iterator[list[str]]:
    """The server answers with these texts, one after the other; gives the list of the prompts that it got."""
    service = server.server.config.app.state.service  # type: ignore[union-attr]
    left, prompts = list(texts), list[str]()

    def submit(requests: Sequence[Request]) -> Any:
        prompts.append(server.pipeline.tokenizer.decode(requests[0].prompt, skip_special=False))
        return ScriptedStream(requests, left.pop(0), reason=reason, stop=stop, size=size, fails=fails)

    service.submit = submit
    try:
        yield prompts
    finally:
        del service.submit
