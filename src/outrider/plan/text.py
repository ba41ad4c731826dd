"""The document of `outrider plan` for a reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outrider.memory import size
from outrider.plan.expected import RECORD

UNDER_LOAD = 0.1  # two measurements that differ by more were hardly taken on a quiet machine


def text(found: dict[str, Any]) -> str:
    """All sections; each number says how it is known."""
    draft = found["draft"]
    names = found["target"]["name"] + ("" if draft is None else f" with {draft['name']}")
    head = f"{names}, context {found['context']}, {_count(found['slots'], 'sequence')} at a time"
    if "gpu" in found:
        head += f"\n{_cards(found['gpu'])}"
    sections = [head, _memory(found["memory"])]
    if found["vocabulary"] is not None:
        sections.append(_vocabulary(found["vocabulary"]))
    kind = "head" if draft is not None and draft["head"] else "draft model"
    sections.append(_speed(found["speed"], kind))
    if draft is None and found["known_drafts"]:
        names = ", ".join(found["known_drafts"])
        sections.append(f"Draft models that guides pair with it, the smallest first (-md NAME): {names}")
    if found["advice"]:
        sections.append(_advice(found["advice"]))
    return "\n\n".join(sections)


def _cards(gpu: dict[str, Any]) -> str:
    cards, size = gpu["count"], gpu["tensor_parallel_size"]
    name = gpu["card"] if cards == 1 else f"{cards} x {gpu['card']}"
    used = f", --tensor-parallel-size {size}" if size > 1 else ", on one of them" if cards > 1 else ""
    return f"on {name} with {gpu['engine']} in {gpu['dtype']}{used}; predicted, nothing was run on it"


def _memory(needs: dict[str, Any]) -> str:
    rows = [(part["name"], size(part["bytes"]), part["how"], part["formula"]) for part in needs["parts"]]
    rows += [
        ("total", size(needs["total"]), "", f"while loading {size(needs['loading_peak'])}"),
        ("may be used", size(needs["limit"]), needs["limit_how"], needs["limit_from"]),
    ]
    if "cache_tokens" in needs:
        rows.append(("room for", f"{needs['cache_tokens']}", "predicted", "tokens in all caches together"))
    verdict = "It fits." if needs["fits"] else "It does not fit."
    return f"Memory. {verdict}\n{_columns(rows, right=(1,))}"


def _vocabulary(match: dict[str, Any]) -> str:
    sizes = f"{match['target_size']} and {match['draft_size']} ids"
    if not match["compatible"]:
        return f"Vocabularies differ ({sizes}, read from the files): {match['first_difference']}"
    padding = "" if match["target_size"] == match["draft_size"] else ", the difference is padding"
    roles = "".join(f"\n  {line}" for line in match["role_differences"])
    return f"Vocabularies agree ({sizes}{padding}, read from the files).{roles}"


def _speed(costs: dict[str, Any], kind: str) -> str:
    target, draft = costs["target"], costs["draft"]
    lines = [f"Speed of the target: {_plain(target)}", _curve("  T(n)", target)]
    if draft is not None:
        lines += [
            f"Speed of the draft: {_plain(draft)}; a token takes {draft['seconds_ratio']:.2f} of one of the "
            "target",
            f"  reads 1000 tokens of a prompt in {draft['prompt_ms']:.1f} s before its first draft, as long "
            f"as {1000 * draft['prompt_ms'] / target['ms']['1']:.0f} tokens of the target (predicted)",
            "  break-even acceptance: "
            + ", ".join(f"{n} tokens {_share(a)}" for n, a in draft["break_even"].items()),
        ]
    header = ["acceptance", *(f"{row['acceptance']:.0%}" for row in costs["lookups"])]
    rows = [header]
    if draft is not None:
        rows.append([kind, *map(_gain, draft["table"])])
    rows.append(["lookups", *map(_gain, costs["lookups"])])
    lines.append("Speed-up (and the best num_speculative_tokens), predicted from these times:")
    lines.append(_columns(rows, right=tuple(range(1, len(header)))))
    if draft is not None and draft["expected"]:
        lines.append(_expected(draft["expected"]))
    return "\n".join(lines)


def _expected(found: Sequence[dict[str, Any]]) -> str:
    here = found[0]["source"] == RECORD
    whose = "measured with this pair here" if here else "measured with this pair, in the package"
    rows = [["", "acceptance", "speed-up", "95%", "best length", "of", "times", "interval"]]
    for row in found:
        low, high = row["interval"]
        rates = ", ".join(f"{rate:.0%}" for rate in row["rates"][:4])
        name = f"{row['method']}, {row['temperature']}" if here else row["source"]
        length = {None: "its own choice", 0: "none pays"}.get(row["length"], str(row["length"]))
        rows.append(
            [name, rates, f"{row['speedup']:.2f}", f"{low:.2f} to {high:.2f}", length,
             _count(row["texts"], "text"), row["times"], row["interval_from"]]
        )  # fmt: skip
    return f"Expected speed-up, by acceptance at positions 1, 2, 3, 4, {whose}:\n{_columns(rows, right=(2,))}"


def _plain(curve: dict[str, Any]) -> str:
    return (
        f"{curve['ms']['1']:.1f} ms a token, {curve['tokens_per_s']:.1f} tokens/s, "
        f"{curve['weights_gb_per_s']:.1f} GB/s of weights, {_known(curve)}"
    )


def _known(curve: dict[str, Any]) -> str:
    if curve["how"] == "predicted":
        return f"predicted from {curve['basis']}"
    spread = curve["spread"]
    under = "" if spread is None else f", when two measurements differed by {spread:.0%}"
    if spread is not None and spread > UNDER_LOAD:
        under += ": other load may have slowed them"
    return f"measured {_age(curve['age_s'])} ago{under}"


def _age(seconds: float) -> str:
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return _count(int(seconds // length), unit)
    return _count(int(seconds), "second")


def _curve(name: str, curve: dict[str, Any]) -> str:
    one = curve["ms"]["1"]
    some = {n: ms for n, ms in curve["ms"].items() if int(n) in (2, 4, 8, 16)}
    return f"{name} / T(1): " + ", ".join(f"{n} tokens {ms / one:.2f}" for n, ms in some.items())


def _gain(row: dict[str, Any]) -> str:
    return "none" if row["length"] == 0 else f"{row['speedup']:.2f} ({row['length']})"


def _share(acceptance: float | None) -> str:
    return "never" if acceptance is None else f"{acceptance:.0%}"


def _advice(found: Sequence[dict[str, str]]) -> str:
    lines = [f"  {a['failure']}: {a['text']}" + (f" ({a['flag']})" if a["flag"] else "") for a in found]
    return "\n".join(["Advice", *lines])


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        placed = enumerate(zip(row, widths, strict=True))
        cells = [cell.rjust(width) if i in right else cell.ljust(width) for i, (cell, width) in placed]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)
