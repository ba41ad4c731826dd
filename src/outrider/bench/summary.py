"""Aggregates a method's runs on a workload into one entry of the bench document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from outrider.bench import stats
from outrider.outputs import RequestOutput, merge
from outrider.policy.report import Account


@dataclass(frozen=True, slots=True)
class Run:
    """One generation: its output and the seconds that decoding took."""

    output: RequestOutput
    seconds: float

    @property
    def token_ids(self) -> list[int]:
        return self.output.outputs[0].token_ids


Pairs: TypeAlias = list[tuple[Run, Run]]
"""Runs of one prompt as pairs (plain run, method's run), both of the same round."""


def summary(
    by_prompt: Mapping[str, Pairs], baseline: Mapping[str, Pairs], account: Account | None = None
) -> dict[str, Any]:
    """The entry of one method on one workload.

    by_prompt: the method's pairs by the name of the text.
    baseline:  those of plain decoding, whose tokens the method's must equal.
    account:   what the controller recorded during the same runs.

    In the entry, `seconds` are sums over all runs, and `other` is the total without the named phases.
    """
    runs = [run for pairs in by_prompt.values() for _, run in pairs]
    ratios = {name: [plain.seconds / run.seconds for plain, run in p] for name, p in by_prompt.items()}
    speedup, interval = stats.speedup(list(ratios.values()))
    metrics = merge([run.output.outputs[0].metrics for run in runs])
    total = metrics.to_dict()
    seconds = sum(run.seconds for run in runs)
    known = {
        "draft": metrics.drafts.draft_seconds,
        "verify": metrics.verify_seconds,
        "sampling": metrics.sampling_seconds,
    }
    first = {name: pairs[0][0].token_ids for name, pairs in baseline.items()}
    entry: dict[str, Any] = {
        "speedup": speedup,
        "speedup_ci": list(interval),
        "tokens_per_s": stats.median(len(run.token_ids) / run.seconds for run in runs),
        "ttft_ms": stats.median(run.output.outputs[0].metrics.to_dict()["ttft_ms"] for run in runs),
        "tpot_ms": stats.median(1e3 * run.seconds / len(run.token_ids) for run in runs),
        "acceptance_rate": total["acceptance_rate"],
        "mean_acceptance_length": total["mean_acceptance_length"],
        "block_efficiency": total["block_efficiency"],
        "identical": all(run.token_ids == first[name] for name, p in by_prompt.items() for _, run in p),
        "runs": len(runs),
        "tokens": sum(len(run.token_ids) for run in runs),
        "seconds": {**known, "other": max(0.0, seconds - sum(known.values())), "total": seconds},
        "num_drafts": total["num_drafts"],
        "num_draft_tokens": total["num_draft_tokens"],
        "num_accepted_tokens": total["num_accepted_tokens"],
        "accepted_per_pos": total["accepted_per_pos"],
        "speculation": {
            name: pairs[-1][1].output.outputs[0].metrics.speculation for name, pairs in by_prompt.items()
        },
        "ratios": ratios,
        "lengths": {name: len(tokens) for name, tokens in first.items()},
    }
    return entry if account is None else entry | account.to_dict()
