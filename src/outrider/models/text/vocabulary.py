"""Compares the vocabularies of two models; a draft model must have its target's."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from outrider.errors import VocabularyMismatchError
from outrider.models.source import TokenizerData
from outrider.models.text.pieces import UNUSED, Pieces
from outrider.models.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class VocabularyDifference:
    """An id with different pieces in two models. A piece is None if the model has no token of that id."""

    token_id: int
    target_piece: str | None
    draft_piece: str | None

    def __str__(self) -> str:
        target, draft = (
            "no token" if piece is None else repr(piece) for piece in (self.target_piece, self.draft_piece)
        )
        return f"id {self.token_id} is {target} in the target and {draft} in the draft"


@dataclass(frozen=True, slots=True)
class VocabularyMatch:
    """The result of `compare_vocabularies`.

    common_size:      number of leading ids that have the same pieces in both; a drafter may use only these.
    first_difference: None when the vocabularies agree, whatever their padding.
    role_differences: one line for each difference in the use of bos and eos. Such a pair works, as the draft
                      model is given the target's ids, but its acceptance may be lower.
    """

    target_size: int
    draft_size: int
    common_size: int
    first_difference: VocabularyDifference | None
    role_differences: tuple[str, ...]

    @property
    def compatible(self) -> bool:
        """Whether every id that either model uses has the same piece in the other."""
        return self.first_difference is None


def compare_vocabularies(
    target: Tokenizer | TokenizerData, draft: Tokenizer | TokenizerData
) -> VocabularyMatch:
    """Compare the pieces of two vocabularies, id by id.

    Padding is ignored: ids at the end of one list that the other does not have, tokens marked as unused, and
    the "[PAD151665]" of converters. Roles are compared as llama.cpp does for a pair: whether bos and eos are
    added, and which they are. Differences in roles are reported, not refused.
    """
    target_pieces, draft_pieces = _pieces(target), _pieces(draft)
    targets = _used_texts(target_pieces)
    drafts = targets if _same(target_pieces, draft_pieces) else _used_texts(draft_pieces)
    difference = None
    common = max(len(targets), len(drafts))
    if targets != drafts:
        both = zip_longest(targets, drafts)
        common, theirs, ours = next((i, t, d) for i, (t, d) in enumerate(both) if t != d)
        difference = VocabularyDifference(common, theirs, ours)
    return VocabularyMatch(
        target_size=len(target_pieces),
        draft_size=len(draft_pieces),
        common_size=common,
        first_difference=difference,
        role_differences=tuple(_role_differences(target, draft)),
    )


def ensure_compatible(target: Tokenizer | TokenizerData, draft: Tokenizer | TokenizerData) -> VocabularyMatch:
    """Compare two vocabularies and raise VocabularyMismatchError, naming the first id that differs and both
    pieces, unless they agree."""
    match = compare_vocabularies(target, draft)
    if match.first_difference is not None:
        raise VocabularyMismatchError(
            f"the draft's vocabulary is not the target's: token {match.first_difference};"
            " choose a draft model of the target's family, or --spec ngram, which needs no draft model"
        )
    return match


def _pieces(source: Tokenizer | TokenizerData) -> Pieces:
    if isinstance(source, Tokenizer):
        return source.pieces
    return Tokenizer.from_data(source).pieces if source.kind == "json" else Pieces.from_data(source)


def _same(a: Pieces, b: Pieces) -> bool:
    """Whether two files gave one array of pieces (shared_strings), and the same types."""
    return a.texts is b.texts and np.array_equal(a.types, b.types)


def _used_texts(pieces: Pieces) -> list[str | None]:
    """The piece of each id up to the last one in use; None for padding."""
    texts: list[str | None] = [
        None if not text or (text.startswith("[PAD") and text == f"[PAD{i}]") else text
        for i, text in enumerate(pieces.texts)
    ]
    for token in np.flatnonzero(pieces.types == UNUSED).tolist():
        texts[token] = None
    while texts and texts[-1] is None:
        texts.pop()
    return texts


def _own_eos(source: Tokenizer | TokenizerData) -> int | None:
    return source.eos_id if isinstance(source, Tokenizer) else source.own_eos_id


def _role_differences(target: Tokenizer | TokenizerData, draft: Tokenizer | TokenizerData) -> list[str]:
    found = []
    for role, adds, ids in (
        ("bos", (target.add_bos, draft.add_bos), (target.bos_id, draft.bos_id)),
        ("eos", (target.add_eos, draft.add_eos), (_own_eos(target), _own_eos(draft))),
    ):
        if adds[0] != adds[1]:
            who = "target" if adds[0] else "draft"
            found.append(f"only the {who} adds {role} to a prompt")
        elif adds[0] and ids[0] != ids[1]:
            found.append(
                f"the {role} token added to a prompt is {ids[0]} in the target, {ids[1]} in the draft"
            )
    if set(target.eos_ids) != set(draft.eos_ids):
        found.append(
            f"a text ends at the ids {sorted(target.eos_ids)} in the target,"
            f" {sorted(draft.eos_ids)} in the draft"
        )
    return found
