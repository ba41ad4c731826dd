"""How often a target accepted a draft model's tokens: kept on disk, for the first text of the next process.

Reading a long prompt into the draft model pays where its tokens are accepted. Who knows nothing of the pair
has to find out first, and a process that writes one text (`outrider run`) has written a tenth of it by then.
The record is found by the two files (path, size, time of change), their quantizations, and how drafts are
drawn and judged. It is believed by nobody: what is not a plausible chance counts as none, and a wrong one
costs a few steps, as what is then seen soon outweighs it. Texts never depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outrider.models.download import read_json
from outrider.models.source import ModelSource
from outrider.records import keep, record_path

FOLDER = "acceptance"
PLAUSIBLE = (0.05, 0.98)  # a chance beyond these is kept as the nearer one
NEWER = 0.5  # weight of what a text taught, against what was known
WORTH = 0.01  # a smaller change is not written


class Experience:
    """The chance of a draft model's token with one target, 0..1, as the file at `path` has it.

    Never raises for the file's sake: a folder that cannot be written to is told in the log, once.
    """

    def __init__(self, path: Path) -> None:
        self._path: Path | None = path
        self._chance = _checked(read_json(path).get("chance"))

    @property
    def chance(self) -> float | None:
        """None where nothing plausible is known."""
        return self._chance

    def learn(self, chance: float) -> None:
        """A text has ended, of whose draft tokens such a share was accepted."""
        least, most = PLAUSIBLE
        chance = min(most, max(least, chance))
        known = self._chance
        fresh = chance if known is None else known + NEWER * (chance - known)
        if known is not None and abs(fresh - known) < WORTH:
            return
        self._chance = fresh
        if self._path is not None and not keep(self._path, {"chance": fresh}):
            self._path = None


def of_pair(
    target: ModelSource, draft: ModelSource, rules: Sequence[str | None], folder: Path | None = None
) -> Experience:
    """What is known of a pair. `rules` name how drafts are drawn and judged; `folder` is one in Outrider's
    cache if not given."""
    facts = [*target.file_facts(), *draft.file_facts(), *rules]
    return Experience(record_path(FOLDER, facts, folder))


def _checked(value: object) -> float | None:
    least, most = PLAUSIBLE
    if isinstance(value, float) and least <= value <= most:
        return value
    return None
