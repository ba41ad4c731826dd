"""Measures the cost curve T(n), the time of a pass over n tokens, which decides whether speculation pays.

A pass reads every packed weight once (GB/s) and does one multiplication and addition for each weight and
token (GMAC/s). The floor is the time to read the weights once at the bandwidth measured in the same run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from outrider.bench import machine
from outrider.engines.base import ForwardItem, LanguageModel
from outrider.engines.native import NativeModel
from outrider.errors import ConfigError
from outrider.models.source import ModelSource

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
CONTEXT = 256  # positions in the cache before a pass
PREFILL = 256  # tokens of a pass that fills the cache


class Passes:
    """Times passes over n tokens of one sequence, after a context of `context` positions.

    The cache is truncated to the context after each pass. The token ids are arbitrary, as the work does not
    depend on them.
    """

    def __init__(self, model: LanguageModel, context: int, widest: int) -> None:
        self._model, self._context = model, context
        self._ids = np.arange(context + widest, dtype=np.int32) % model.vocab_size
        self._cache = model.new_cache(context + widest)
        for start in range(0, context, PREFILL):
            self._run(self._ids[start : min(start + PREFILL, context)], rows=0)

    def _run(self, ids: Any, rows: int) -> None:
        n = len(ids)
        parents = np.arange(-1, n - 1, dtype=np.int32)
        self._model.forward([ForwardItem(self._cache, ids, parents, np.arange(rows, dtype=np.int32))])

    def prefill_milliseconds(self, n: int) -> float:
        """Milliseconds to prefill a prompt of n tokens into a new cache, in chunks of PREFILL tokens. Logits
        are computed for the last token only."""
        cache = self._model.new_cache(n)
        ids = np.arange(n, dtype=np.int32) % self._model.vocab_size
        start = time.perf_counter()
        for at in range(0, n, PREFILL):
            chunk = ids[at : at + PREFILL]
            wanted = [len(chunk) - 1] if at + PREFILL >= n else []
            parents = np.arange(-1, len(chunk) - 1, dtype=np.int32)
            self._model.forward([ForwardItem(cache, chunk, parents, np.array(wanted, np.int32))])
        elapsed = time.perf_counter() - start
        cache.close()
        return elapsed * 1e3

    def milliseconds(self, n: int) -> float:
        """Milliseconds of one pass over n tokens, with the logits of all of them."""
        start = time.perf_counter()
        self._run(self._ids[self._context : self._context + n], rows=n)
        elapsed = time.perf_counter() - start
        self._cache.truncate(self._context)
        return elapsed * 1e3


def macs_per_token(source: ModelSource) -> int:
    """Multiplications by weights for one token: all matrices and the output matrix, but no embedding
    lookup."""
    tensors = dict(source.tensors)
    embedding = tensors.pop("token_embd.weight")
    tensors.setdefault("output.weight", embedding)
    return sum(t.shape[0] * t.shape[1] for t in tensors.values() if len(t.shape) == 2)


def measure(
    model: NativeModel,
    *,
    threads: int | None = None,
    context: int = CONTEXT,
    widths: Sequence[int] = WIDTHS,
    rounds: int = 7,
    on_pass: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """The document of `outrider bench --cost-curve --json`: for each width, the median of `rounds` passes.

    context: tokens in the cache before each pass.
    widths:  tokens of a pass; each round measures all widths once.
    on_pass: called after each timed pass.
    Times are in milliseconds, sizes in bytes, bandwidth in 1e9 bytes a second.
    Raises ConfigError when the context and the widest pass exceed the model's positions.
    """
    if context + max(widths) > model.max_positions:
        raise ConfigError(
            f"a context of {context} and a pass over {max(widths)} tokens are more than the model's "
            f"{model.max_positions} positions; give a smaller -c"
        )
    passes = Passes(model, context, max(widths))
    passes.milliseconds(max(widths))
    before = machine.probe()
    bandwidth = model.read_gb_per_s()
    times: dict[int, list[float]] = {n: [] for n in widths}
    for _ in range(rounds):
        for n in widths:
            times[n].append(passes.milliseconds(n))
            on_pass()
    bandwidth = max(bandwidth, model.read_gb_per_s())
    after = machine.probe()
    return {
        "machine": {
            **machine.describe(threads or model.threads),
            "isa": model.isa,
            "probe": {"before": before, "after": after, "drift": machine.drift(before, after)},
        },
        "model": model.source.display_name,
        "context": context,
        "cost_curve_ms": {str(n): statistics.median(t) for n, t in times.items()},
        "weights_bytes": model.weights_bytes,
        "read_gb_per_s": bandwidth,
        "floor_ms": floor_ms(model.weights_bytes, bandwidth),
        "macs_per_token": macs_per_token(model.source),
    }


def floor_ms(weights_bytes: int, read_gb_per_s: float) -> float:
    """Milliseconds to read the weights once."""
    return weights_bytes / read_gb_per_s / 1e6


def gb_per_s(weights_bytes: int, milliseconds: float) -> float:
    return weights_bytes / milliseconds / 1e6


def gmac_per_s(macs: int, n: int, milliseconds: float) -> float:
    return macs * n / milliseconds / 1e6


HEADER = ("tokens", "ms", "T(n)/T(1)", "ms a token", "GB/s", "GMAC/s")


def rows(curve: Mapping[str, float], weights_bytes: int, macs: int) -> list[tuple[str, ...]]:
    """A row of text for each width, in the columns of HEADER."""
    one = curve.get("1")
    return [
        (
            n,
            f"{ms:.1f}",
            "" if one is None else f"{ms / one:.2f}",
            f"{ms / int(n):.1f}",
            f"{gb_per_s(weights_bytes, ms):.1f}",
            f"{gmac_per_s(macs, int(n), ms):.0f}",
        )
        for n, ms in curve.items()
    ]


def aligned(table: Sequence[Sequence[str]]) -> str:
    """A table for a terminal with right-aligned columns."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in table)


def floor_line(document: Mapping[str, Any], milliseconds: float | None) -> str:
    """The floor in words, and the share of it that T(1) = `milliseconds` reaches, if that was measured."""
    share = "" if milliseconds is None else f"; T(1) reaches {document['floor_ms'] / milliseconds:.0%} of it"
    return (
        f"floor {document['floor_ms']:.1f} ms: {document['weights_bytes'] / 1e6:.0f} MB at "
        f"{document['read_gb_per_s']:.1f} GB/s{share}"
    )


def text(document: Mapping[str, Any]) -> str:
    """The document of `measure` as text for a terminal."""
    about, curve = document["machine"], document["cost_curve_ms"]
    drift = about["probe"]["drift"]
    noise = f"; the probe moved by {drift:.0%}: other load, measure again" if drift > 0.1 else ""
    return "\n".join(
        (
            f"{document['model']}, context {document['context']}, {about['threads']} threads, {about['isa']}"
            f", {about['cpu']}{noise}",
            "",
            aligned([HEADER, *rows(curve, document["weights_bytes"], document["macs_per_token"])]),
            "",
            floor_line(document, curve.get("1")),
        )
    )
