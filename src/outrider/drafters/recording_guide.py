"""What a draft model's confidence was in the tokens that it drew."""

from __future__ import annotations

from outrider.decoding.controller import Guide


class RecordingGuide:
    """Implements `Guide`: the plan's own, or a chain without one; records the confidence that is stated.

    guide:  the plan's, or None.
    stated: confidence by node.
    """

    def __init__(self, guide: Guide | None) -> None:
        self.guide = guide
        self.stated: list[float | None] = []

    def drew(self, parent: int, confidence: float) -> bool:
        self.stated.append(confidence)
        return self.guide is not None and self.guide.drew(parent, confidence)

    def next_node(self, ready: int = -1) -> int:
        return len(self.stated) - 1 if self.guide is None else self.guide.next_node(ready)
