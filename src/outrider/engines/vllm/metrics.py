"""vLLM's Prometheus metrics under Outrider's names: `vllm:NAME` is `outrider:NAME`, as the meaning is the
same."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

THEIRS, OURS = "vllm:", "outrider:"
_LINE = re.compile(rf"((?:# (?:HELP|TYPE) )?){THEIRS}")
DRAFTS, _DRAFTED, _ACCEPTED = (
    f"{THEIRS}spec_decode_num_{what}_total" for what in ("drafts", "draft_tokens", "accepted_tokens")
)
_PER_POSITION = f"{THEIRS}spec_decode_num_accepted_tokens_per_pos_total"


@dataclass(frozen=True, slots=True)
class Counts:
    """What vLLM has counted since it started. running, waiting: requests now. per_position: accepted tokens
    by position in the draft."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    per_position: tuple[int, ...] = ()
    running: float = 0.0
    waiting: float = 0.0

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / drafted; None without drafts."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / drafts; None without drafts."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else None


def renamed(text: str) -> str:
    """The page with vLLM's metrics only, under Outrider's names."""
    lines = [_LINE.sub(rf"\1{OURS}", line, count=1) for line in text.splitlines() if _LINE.match(line)]
    return "".join(f"{line}\n" for line in lines)


def counts(text: str) -> Counts:
    """The counts of a page, of all engines behind it together; those that it lacks, or that cannot be read,
    are 0. A page under Outrider's names is as good: a replica may have a server in front, too."""
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    try:
        for family in text_string_to_metric_families(_only_theirs(text.replace(OURS, THEIRS))):
            for sample in family.samples:
                if sample.value != sample.value:  # NaN
                    continue
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
                at = sample.labels.get("position", "")
                if sample.name == _PER_POSITION and at.isdecimal() and len(at) < 5:
                    positions[int(at)] = positions.get(int(at), 0.0) + sample.value
    except (ValueError, IndexError, KeyError):
        return Counts()
    return Counts(
        int(sums.get(DRAFTS, 0)),
        int(sums.get(_DRAFTED, 0)),
        int(sums.get(_ACCEPTED, 0)),
        tuple(int(positions.get(at, 0)) for at in range(max(positions, default=-1) + 1)),
        sums.get(f"{THEIRS}num_requests_running", 0.0),
        sums.get(f"{THEIRS}num_requests_waiting", 0.0),
    )


def _only_theirs(text: str) -> str:
    return "".join(f"{line}\n" for line in text.splitlines() if _LINE.match(line))


def gauges(values: Mapping[str, tuple[str, float | None]]) -> str:
    """Gauges of the server in front, by name without prefix: (help, value). None leaves one out."""
    return "".join(
        f"# HELP {OURS}{name} {text}\n# TYPE {OURS}{name} gauge\n{OURS}{name} {value:.10g}\n"
        for name, (text, value) in values.items()
        if value is not None
    )


def labelled(name: str, text: str, labels: Iterable[tuple[str, str]]) -> str:
    """A gauge of 1 whose labels say something."""
    inside = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels)
    return f"# HELP {OURS}{name} {text}\n# TYPE {OURS}{name} gauge\n{OURS}{name}{{{inside}}} 1\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
