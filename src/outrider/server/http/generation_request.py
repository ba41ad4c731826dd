"""The inner request: what every dialect of the API is translated to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.decoding.request import Request
from outrider.server.http.metrics import RequestTimer


@dataclass(frozen=True, slots=True)
class Arrival:
    """What is known of an HTTP request before its body is translated.

    model:     the name that the answer gives.
    namespace: clients of the same namespace share caches.
    timer:     started on arrival.
    """

    model: str
    namespace: str
    timer: RequestTimer


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One request for text, whatever the dialect in which it came.

    id:      of the answer, such as "cmpl-…".
    arrival: see there.
    prompts: for each prompt the engine's requests, one for each of its samples; neither is empty.
    stream:  send tokens as they are generated.
    warnings: what the client may want to know of its request, one line each.
    """

    id: str
    arrival: Arrival
    prompts: Sequence[Sequence[Request]]
    stream: bool
    warnings: Sequence[str] = ()

    @property
    def samples(self) -> list[Request]:
        """The samples of all prompts, those of the first prompt first."""
        return [sample for samples in self.prompts for sample in samples]

    @property
    def prompt_sizes(self) -> list[int]:
        """Tokens of each prompt."""
        return [len(samples[0].prompt) for samples in self.prompts]
