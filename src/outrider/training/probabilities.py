"""What a draft model learns from: the target's probabilities at each token of its answers.

A record has those of the likeliest tokens. What is left belongs to all others together, so that a draft model
learns how much it may give them, and not to whom.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outrider.decoding.types import FloatArray
from outrider.engines.base import StepEngine
from outrider.training.records import CHUNK, Records, RecordStore
from outrider.training.texts import Text

KEPT = 32  # tokens of a record
LEAST = 1e-30  # a probability that is on record is above 0


def record_of(kept: int = KEPT) -> np.dtype[Any]:
    """ids: of the likeliest tokens, the likeliest first; probs: theirs."""
    return np.dtype([("ids", "<i4", (kept,)), ("probs", "<f4", (kept,))])


class ProbabilityStore(RecordStore):
    """The target's probabilities of all answers' tokens.

    vocab_size: ids of the target that are tokens; logits of padding count for nothing.
    """

    def __init__(self, path: Path, texts: Sequence[Text], vocab_size: int) -> None:
        kept = min(KEPT, vocab_size - 1)
        super().__init__(
            path,
            record_of(kept),
            texts,
            rows=lambda text: len(text.answer),
            capture=lambda engine, text: capture(engine, text, vocab_size, kept),
        )


def capture(engine: StepEngine, text: Text, vocab_size: int, kept: int = KEPT) -> Records:
    """The records of the answer's tokens, from the target's passes over a text: of the places before them."""
    before = len(text.prompt) - 1  # tokens whose successors belong to the prompt
    seq = engine.open(text.ids, len(text.ids), None)
    found = []
    try:
        while (left := before - seq.committed) > 0:
            engine.prefill(seq, min(CHUNK, left))
        while len(seq.pending):
            found.append(likeliest(engine.prefill_scores(seq, CHUNK)[:, :vocab_size], kept))
    finally:
        engine.close(seq)
    return np.concatenate(found)


def likeliest(logits: FloatArray, kept: int) -> Records:
    """Records of rows of logits, float32[n, ids] with ids > kept. Of equals the lower ids come first."""
    found = np.empty(len(logits), record_of(kept))
    for record, values in zip(found, logits, strict=True):
        bound = np.partition(values, -kept)[-kept]
        ids = np.flatnonzero(values >= bound)
        ids = ids[np.argsort(-values[ids], kind="stable")][:kept]
        weights = np.exp(values - values[ids[0]], dtype=np.float32)
        record["ids"] = ids
        record["probs"] = np.maximum(weights[ids] / weights.sum(dtype=np.float64), LEAST)
    return found
