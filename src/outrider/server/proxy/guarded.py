"""What is known of a child server: its self-check, what its speculation is worth, and what is done about
it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from outrider.engines.vllm import metrics as vllm_metrics
from outrider.engines.vllm.metrics import Counts
from outrider.engines.vllm.self_check import Outcome
from outrider.engines.vllm.upstream import Upstream, UpstreamError
from outrider.server.proxy import worth
from outrider.server.proxy.backend import Backend, ChildServer
from outrider.server.proxy.measure import Measurer
from outrider.version import __version__

logger = logging.getLogger("outrider")

METRICS_SECONDS = 10.0


class Launched(Protocol):
    """A child, and how it was started."""

    @property
    def child(self) -> ChildServer: ...

    @property
    def speculative(self) -> Mapping[str, Any]:
        """Keys of vLLM's `speculative_config`."""

    @property
    def line(self) -> str:
        """The command."""


@dataclass(frozen=True, slots=True)
class About:
    """names: of the model in the API. model: as vLLM was given it. version: of vLLM. why_not_measured: in
    words, where there is nothing to measure pairs with."""

    names: tuple[str, ...]
    model: str
    version: str
    why_not_measured: str = ""


class Guarded:
    """A child server with what is measured of it.

    launched:     the child that runs.
    launch:       makes one, not started yet, with so many draft tokens; 0 is without speculation.
    plain, share: see Measurer.
    never_slower: start it anew with fewer draft tokens, or none, when speculation is measured to cost time.
    """

    def __init__(
        self,
        backend: Backend,
        launched: Launched,
        about: About,
        outcome: Outcome,
        *,
        launch: Callable[[int], Launched],
        plain: Upstream | None = None,
        share: float = 0.01,
        never_slower: bool = False,
    ) -> None:
        self.backend, self.about, self.outcome = backend, about, outcome
        self._launched, self._launch, self._never_slower = launched, launch, never_slower
        self.measurer = Measurer(lambda: backend.upstream, plain, share, self._measured)
        self.measurer.paused = not launched.speculative
        self.changes: list[str] = []  # one line for each
        self._changing: asyncio.Task[None] | None = None

    @property
    def version(self) -> str:
        return self.about.version

    @property
    def draft_tokens(self) -> int | None:
        """Of a step; None where the draft's own configuration says it, 0 without speculation."""
        speculative = self._launched.speculative
        return speculative.get("num_speculative_tokens") if speculative else 0

    def sampling_refusal(self) -> str | None:
        """Why requests above temperature 0 are refused; None when they are not."""
        if not self.outcome.refuses_sampling or not self._launched.speculative:
            return None
        return (
            f"temperature above 0 is refused: vLLM {self.version} samples wrongly with speculation "
            f"({self.outcome.detail}); send temperature 0, or start the server with --spec none "
            "or --self-check off"
        )

    async def close(self) -> None:
        """End what is measured and changed."""
        await self.measurer.close()
        if self._changing is not None:
            self._changing.cancel()
            await asyncio.gather(self._changing, return_exceptions=True)

    async def counts(self) -> tuple[Counts, str]:
        """vLLM's counts and its page of metrics; empty ones while it cannot be asked."""
        try:
            _, raw = await self.backend.upstream.read("GET", "/metrics", seconds=METRICS_SECONDS)
        except UpstreamError:
            return Counts(), ""
        page = raw.decode("utf-8", "replace")
        return vllm_metrics.counts(page), page

    async def metrics(self) -> str:
        """The page for Prometheus: vLLM's metrics under Outrider's names, and what is measured here."""
        counts, page = await self.counts()
        found = self.measurer.speedup.estimate()
        own = {
            "healthy": ("0 after the engine has failed.", float(self.backend.healthy)),
            "engine_restarts": ("Times that vLLM was started anew.", float(self.backend.restarts)),
            "spec_decode_draft_tokens": ("Most draft tokens of a step.", _float(self.draft_tokens)),
            "spec_decode_acceptance_rate": ("Accepted / drafted.", counts.acceptance_rate),
            "spec_decode_mean_acceptance_length": (
                "1 + accepted / drafts.",
                counts.mean_acceptance_length,
            ),
            "spec_decode_measured_pairs": ("Pairs that count.", float(found.pairs)),
            "spec_decode_measured_speedup": ("Over plain decoding, in pairs.", found.speedup),
            "spec_decode_measured_speedup_low": ("Lower end of its 95% interval.", found.low),
            "spec_decode_measured_speedup_high": ("Upper end of its 95% interval.", found.high),
        }
        state = (("self_check", self.outcome.state), ("worth", found.state))
        words = "Always 1; what the self-check and the pairs say."
        return (
            vllm_metrics.renamed(page)
            + vllm_metrics.gauges(own)
            + vllm_metrics.labelled("spec_decode_state", words, state)
        )

    async def status(self) -> dict[str, Any]:
        """The document of /v1/outrider/status."""
        counts, _ = await self.counts()
        backend, speculative = self.backend, self._launched.speculative
        return {
            "version": __version__,
            "model": {"names": list(self.about.names), "target": self.about.model},
            "engine": {
                "name": "vllm",
                "version": self.version,
                "state": backend.state,
                "healthy": backend.healthy,
                "failure": backend.failure,
                "command": self._launched.line,
                "pid": backend.pid,
                "restarts": backend.restarts,
                "running": counts.running,
                "waiting": counts.waiting,
                "requests": backend.served,
            },
            "speculation": {
                "method": speculative.get("method", "vLLM's choice") if speculative else "none",
                "config": dict(speculative),
                "num_drafts": counts.num_drafts,
                "num_draft_tokens": counts.num_draft_tokens,
                "num_accepted_tokens": counts.num_accepted_tokens,
                "accepted_per_pos": list(counts.per_position),
                "acceptance_rate": counts.acceptance_rate,
                "mean_acceptance_length": counts.mean_acceptance_length,
            },
            "self_check": self.outcome.document(),
            "worth": self._worth(counts),
        }

    def _worth(self, counts: Counts) -> dict[str, Any]:
        measurer = self.measurer
        found = measurer.speedup.estimate()
        document: dict[str, Any] = {
            "measured_against": None if measurer.plain is None else f"the plain replica {measurer.plain}",
            "share": measurer.share if measurer.plain is not None else 0.0,
            "pairs": found.pairs,
            "pairs_left_out": dict(measurer.left_out),
            "speedup": found.speedup,
            "speedup_ci": None if found.speedup is None else [found.low, found.high],
            "state": found.state,
            "never_slower": self._never_slower,
            "changes": list(self.changes),
        }
        if measurer.plain is None and self.draft_tokens != 0:
            return document | {"state": "not measured", "recommendation": self.about.why_not_measured}
        words = worth.recommendation(found, self.draft_tokens, counts.acceptance_rate)
        return document | {"recommendation": words}

    def _measured(self) -> None:
        """A pair has been added: do what follows from them."""
        found = self.measurer.speedup.estimate()
        if self._never_slower and found.state == "slower" and self._changing is None:
            self._changing = asyncio.create_task(self._change(found))

    async def _change(self, found: worth.Estimate) -> None:
        """Start the child anew with fewer draft tokens, or none."""
        fewer = worth.fewer(self.draft_tokens)
        line = (
            f"speculation ran at {found.speedup:.2f} times plain decoding ({found.low:.2f} to "
            f"{found.high:.2f}, {found.pairs} pairs): "
            f"{f'{fewer} draft tokens' if fewer else 'off'} from now on"
        )
        logger.warning(line)
        self.measurer.paused = True
        launched = self._launch(fewer)
        await self.backend.relaunch(launched.child)
        self._launched = launched
        self.changes.append(line)
        if not launched.speculative:
            self.outcome = Outcome("no speculation")
        self.measurer.speedup.reset()
        self.measurer.paused = not launched.speculative
        self._changing = None


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)
