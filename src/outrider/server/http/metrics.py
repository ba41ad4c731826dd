"""Prometheus metrics: vLLM's names where the meaning is the same, with the prefix `outrider:`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from outrider.decoding.events import Event, FinishEvent
from outrider.policy.report import brief
from outrider.server.engine.async_engine import EngineStats, ServerEngine

PREFIX = "outrider:"
CONTENT_TYPE = CONTENT_TYPE_LATEST
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5)
_LONG = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self, model: str, engine: ServerEngine) -> None:
        self.registry = CollectorRegistry()
        self._model = model
        self.registry.register(_EngineCollector(model, engine))
        add = self._histogram
        self.ttft = add("time_to_first_token_seconds", "From arrival to the first token.", _SHORT + _LONG)
        self.itl = add("inter_token_latency_seconds", "Between deliveries of a sample's tokens.", _SHORT)
        self.tpot = add("request_time_per_output_token_seconds", "Mean of a sample, after the first.", _SHORT)
        self.e2e = add("e2e_request_latency_seconds", "From arrival to the end.", _LONG)
        self.prompt = add("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self.output = add("request_generation_tokens", "Tokens written for a sample.", _TOKENS)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        made = Histogram(
            PREFIX + name, text, ("model_name",), registry=self.registry, buckets=sorted(set(buckets))
        )
        return made.labels(self._model)

    def timer(self) -> RequestTimer:
        """A timer for one request, which starts now."""
        return RequestTimer(self)

    def page(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class RequestTimer:
    """Observes the latencies and token counts of one request's samples in the histograms."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics, self._began = metrics, time.perf_counter()
        self._firsts: dict[str, float] = {}
        self._lasts: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def prompts(self, sizes: Iterable[int]) -> None:
        """The number of tokens of each prompt."""
        for size in sizes:
            self._metrics.prompt.observe(size)

    def batch(self, events: Sequence[Event]) -> None:
        """Events that were delivered together."""
        now, seen = time.perf_counter(), set()
        for event in events:
            name = event.request_id
            if isinstance(event, FinishEvent):
                self._ended(name, now)
                continue
            self._counts[name] = self._counts.get(name, 0) + 1
            if name in seen:
                continue
            seen.add(name)
            if (last := self._lasts.get(name)) is None:
                self._firsts[name] = now
                self._metrics.ttft.observe(now - self._began)
            else:
                self._metrics.itl.observe(now - last)
            self._lasts[name] = now

    def _ended(self, name: str, now: float) -> None:
        count = self._counts.get(name, 0)
        self._metrics.e2e.observe(now - self._began)
        self._metrics.output.observe(count)
        if count > 1:
            self._metrics.tpot.observe((self._lasts[name] - self._firsts[name]) / (count - 1))


class _EngineCollector(Collector):
    """The engine's own counts, read at each scrape."""

    def __init__(self, model: str, engine: ServerEngine) -> None:
        self._model, self._engine = model, engine

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats
        yield from self._gauges(stats)
        yield from self._counters(stats)
        yield from self._drafting(stats)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        made = GaugeMetricFamily(PREFIX + name, text, labels=["model_name"])
        made.add_metric([self._model], value)
        return made

    def _counter(self, name: str, text: str, value: float) -> Metric:
        return self._counters_by(name, text, None, {"": value})

    def _counters_by(self, name: str, text: str, label: str | None, values: dict[str, float]) -> Metric:
        labels = ["model_name"] if label is None else ["model_name", label]
        made = CounterMetricFamily(PREFIX + name, text, labels=labels)
        for key, value in values.items():
            made.add_metric([self._model] if label is None else [self._model, key], value)
        return made

    def _gauges(self, stats: EngineStats) -> Iterator[Metric]:
        yield self._gauge("num_requests_running", "Samples in the engine.", stats.running)
        yield self._gauge("num_requests_waiting", "Samples that wait for a place.", stats.waiting)
        used = stats.cache_bytes / stats.cache_limit if stats.cache_limit else 0.0
        yield self._gauge("kv_cache_usage_perc", "Reserved part of the memory for caches; 1 is all.", used)
        yield self._gauge("cache_bytes", "Memory reserved for keys and values.", stats.cache_bytes)
        yield self._gauge("prefix_cache_bytes", "Memory of the prefix cache.", stats.prefix_bytes)
        yield self._gauge("lookup_bytes", "Memory of recent outputs to look up in.", stats.lookup_bytes)
        yield self._gauge("healthy", "0 after the engine has failed.", float(self._engine.healthy))

    def _counters(self, stats: EngineStats) -> Iterator[Metric]:
        yield self._counter(
            "prompt_tokens", "Tokens of the prompts of finished samples.", stats.prompt_tokens
        )
        yield self._counter("generation_tokens", "Tokens written.", stats.output_tokens)
        yield self._counters_by(
            "generation_tokens_by_kind",
            "Tokens written, by how they came about.",
            "kind",
            dict(stats.by_kind),
        )
        yield self._counters_by(
            "request_success", "Samples that ended, by reason.", "finished_reason", dict(stats.finished)
        )
        yield self._counter("prefix_cache_queries", "Prompt tokens looked up.", stats.prefix_query_tokens)
        yield self._counter("prefix_cache_hits", "Prompt tokens found.", stats.prefix_hit_tokens)
        yield self._counter("engine_steps", "Steps of the engine.", stats.steps)
        yield self._counter("target_passes", "Scorings of a sample by the target.", stats.target_passes)
        seconds = {
            "step": stats.step_seconds,
            "draft": stats.drafts.draft_seconds,
            "verify": stats.verify_seconds,
            "other": stats.other_seconds,
        }
        yield self._counters_by("phase_seconds", "Where the time went; step is all of it.", "phase", seconds)

    def _drafting(self, stats: EngineStats) -> Iterator[Metric]:
        drafts = stats.drafts
        yield self._counter("spec_decode_num_drafts", "Drafts.", drafts.num_drafts)
        yield self._counter("spec_decode_num_draft_tokens", "Drafted tokens.", drafts.num_draft_tokens)
        yield self._counter("spec_decode_num_accepted_tokens", "Accepted tokens.", drafts.num_accepted_tokens)
        yield self._counters_by(
            "spec_decode_num_accepted_tokens_per_pos",
            "Accepted tokens by position in the draft.",
            "position",
            {str(at): n for at, n in enumerate(stats.accepted_per_pos)},
        )
        yield self._counters_by(
            "spec_decode_num_draft_tokens_by_drafter",
            "Drafted tokens by drafter.",
            "drafter",
            {name: c.num_draft_tokens for name, c in stats.by_drafter.items()},
        )
        yield self._counters_by(
            "spec_decode_num_accepted_tokens_by_drafter",
            "Accepted tokens by drafter.",
            "drafter",
            {name: c.num_accepted_tokens for name, c in stats.by_drafter.items()},
        )
        earlier = stats.earlier_outputs
        for kind, count in (("draft", earlier.num_draft_tokens), ("accepted", earlier.num_accepted_tokens)):
            yield self._counter(
                f"spec_decode_num_{kind}_tokens_earlier_outputs",
                f"{kind.capitalize()} tokens that only other requests' outputs had.",
                count,
            )
        for name, value in (
            ("predicted_speedup", stats.predicted_speedup),
            ("measured_speedup", stats.measured_speedup),
        ):
            if value is not None:
                yield self._gauge(f"spec_decode_{name}", "Over plain decoding, by the controller.", value)
        made = GaugeMetricFamily(
            PREFIX + "spec_decode_state",
            "Always 1; the reason says why speculation was on or off for the latest sample.",
            labels=["model_name", "state", "reason"],
        )
        if stats.speculation:
            state, reason = speculation_state(stats.speculation)
            made.add_metric([self._model, state, reason], 1)
        yield made


def speculation_state(text: str) -> tuple[str, str]:
    """("on" or "off", the reason). The reason is one of few texts without counts, as a label must be; the
    status document has the counts."""
    return "off" if text.startswith("off") else "on", brief(text)
