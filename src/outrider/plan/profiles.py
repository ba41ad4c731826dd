"""Acceptance that was recorded with real pairs, which comes with the package.

`benchmarks/acceptance_profiles.py` writes the file. A profile has a pair, a workload and a temperature; its
texts are those of `acceptance_record`. `plan` uses the profiles of a pair that it recognizes, and
`bench --synthetic --acceptance NAME` one by its name.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from outrider.acceptance_record import Group, Groups, TextCounts, text_of

_FILE = Path(__file__).with_name("acceptance_profiles.json")


@dataclass(frozen=True, slots=True)
class Profile:
    """One profile.

    target, draft: short names of the table of known models.
    rule:          the acceptance rule.
    """

    name: str
    target: str
    draft: str
    workload: str
    temperature: float
    rule: str
    texts: tuple[TextCounts, ...]

    @property
    def groups(self) -> Groups:
        """The same as a record has it."""
        kind = "sampled" if self.temperature else "greedy"
        return {Group("draft_model", self.rule, kind): self.texts}


@functools.cache
def profiles() -> Mapping[str, Profile]:
    """All profiles, by name."""
    found = {}
    for row in json.loads(_FILE.read_text("utf-8"))["profiles"]:
        texts = tuple(text_of(text) for text in row["texts"])
        pair = (row["target"], row["draft"])
        found[row["name"]] = Profile(
            row["name"], *pair, row["workload"], row["temperature"], row["rule"], texts
        )
    return MappingProxyType(found)


def of_pair(target: str | None, draft: str | None) -> list[Profile]:
    """The profiles of a pair, by the short names of both."""
    return [profile for profile in profiles().values() if (profile.target, profile.draft) == (target, draft)]
