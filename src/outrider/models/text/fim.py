"""Fill in the middle (Bavarian et al. 2022): the prompt for a text between two others, from a vocabulary's
tokens for it. Pure functions.

Which tokens these are is llama.cpp's rule: the ids that the model's file gives, else tokens with known names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider.errors import PromptError

if TYPE_CHECKING:
    from outrider.models.text.tokenizer import Tokenizer

# By role: the names in vocabularies of Qwen, StarCoder, Granite, DeepSeek, CodeLlama, GLM and Codestral; in
# each column those of one family.
NAMES: Mapping[str, tuple[str, ...]] = {
    "prefix": (
        *("<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "<｜fim▁begin｜>", "▁<PRE>", "<PRE>"),
        *("<|code_prefix|>", "[PREFIX]"),
    ),
    "suffix": (
        *("<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "<｜fim▁hole｜>", "▁<SUF>", "<SUF>"),
        *("<|code_suffix|>", "[SUFFIX]"),
    ),
    "middle": (
        *("<|fim_middle|>", "<fim_middle>", "<fim-middle>", "<｜fim▁end｜>", "▁<MID>", "<MID>"),
        *("<|code_middle|>", "[MIDDLE]"),
    ),
}
# Further roles: padding, the name of a repository, and the name of a file. They end any text in llama.cpp.
END_NAMES: Mapping[str, tuple[str, ...]] = {
    "pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "repository": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "file": ("<|file_sep|>",),
}
# What else ends a text that is filled in.
ENDS = (
    *("<file_sep>", "<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>"),
    *("▁<EOT>", "<EOT>", "_<EOT>"),
)
_FIRST = "[PREFIX]"  # of the one family whose prompts have the suffix first
_KNOWN = frozenset(name for names in (*NAMES.values(), *END_NAMES.values(), ENDS) for name in names)


@dataclass(frozen=True, slots=True)
class FimTokens:
    """The ids of a vocabulary's tokens for filling in.

    ends:         ids that end the text that is filled in, besides those that end any text.
    repository:   stands before the name of a repository; None where there is no such token.
    file:         stands before the name of a file, likewise.
    suffix_first: the prompt has the suffix before the prefix, and no token before the middle.
    """

    prefix: int
    suffix: int
    middle: int
    ends: frozenset[int]
    repository: int | None = None
    file: int | None = None
    suffix_first: bool = False


def fim_roles(texts: Sequence[str], stated: Mapping[str, int]) -> dict[str, int]:
    """Ids by role (of NAMES and END_NAMES). texts: of the vocabulary's tokens; stated: what the file says,
    which has precedence. Missing ones of the three roles for filling in are taken from one family that has
    all of them, or not at all."""
    return _roles(_known_ids(texts), stated)


def fim_tokens(tokenizer: Tokenizer) -> FimTokens | None:
    """The tokens of a vocabulary; None when one of the three is missing, or is another one too."""
    ids = _known_ids(tokenizer.pieces.texts)
    roles = _roles(ids, tokenizer.fim_ids)
    three = {roles[role] for role in NAMES if role in roles}
    if len(three) < len(NAMES):
        return None
    ends = {ids[name] for name in ENDS if name in ids} | {roles[role] for role in END_NAMES if role in roles}
    return FimTokens(
        roles["prefix"],
        roles["suffix"],
        roles["middle"],
        ends=frozenset(ends - three),
        repository=roles.get("repository"),
        file=roles.get("file"),
        suffix_first=tokenizer.pieces.texts[roles["prefix"]] == _FIRST,
    )


def fim_prompt(
    tokenizer: Tokenizer,
    tokens: FimTokens,
    prefix: str | Sequence[int],
    suffix: str,
    *,
    add_special: bool = True,
) -> list[int]:
    """The prompt's ids for the text between `prefix` (a text or its ids) and `suffix`. Marks that are written
    in a text are plain text. add_special: begin with bos, where the model wants it. Raises PromptError for
    text that is not Unicode."""
    before = list(prefix) if not isinstance(prefix, str) else plain_ids(tokenizer, tokens, prefix)
    after = plain_ids(tokenizer, tokens, suffix)
    bos = bos_ids(tokenizer) if add_special else []
    return [*bos, *arranged(tokens, before, after)]


def arranged(tokens: FimTokens, before: Sequence[int], after: Sequence[int]) -> list[int]:
    """The ids before and after the gap, with the model's marks in the order that it was trained on."""
    if tokens.suffix_first:
        return [tokens.suffix, *after, tokens.prefix, *before]
    return [tokens.prefix, *before, tokens.suffix, *after, tokens.middle]


def bos_ids(tokenizer: Tokenizer) -> list[int]:
    """[bos] for a model that wants it before a text, else []."""
    first = tokenizer.encode("", add_special=True)[:1]
    return first if first == [tokenizer.bos_id] else []


def plain_ids(tokenizer: Tokenizer, tokens: FimTokens, text: str) -> list[int]:
    """The ids of a text in which no mark for filling in counts as one. Raises PromptError for text that is
    not Unicode."""
    if not text:
        return []
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    marks = {tokens.prefix, tokens.suffix, tokens.middle, *tokens.ends}
    if marks.isdisjoint(ids):
        return ids
    # Some tokenizer.json do not call these tokens special: they are broken up, so that none is found.
    names = sorted((tokenizer.pieces.texts[mark] for mark in marks), key=len, reverse=True)
    cuts = [found.start() + 1 for found in re.finditer("|".join(map(re.escape, filter(None, names))), text)]
    parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return [i for part in parts if part for i in _encode(tokenizer, part)]


def needed(tokens: FimTokens | None) -> FimTokens:
    """The tokens, or PromptError (one line) for a model without them."""
    if tokens is None:
        raise PromptError(
            "this model cannot fill in between two texts: its vocabulary has no tokens for it (such as "
            "<|fim_prefix|>); serve a model for code that has them"
        )
    return tokens


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special=False, parse_special=False)


def _known_ids(texts: Sequence[str]) -> dict[str, int]:
    return {text: token for token, text in enumerate(texts) if text in _KNOWN}


def _roles(ids: Mapping[str, int], stated: Mapping[str, int]) -> dict[str, int]:
    found = dict(stated)
    missing = [role for role in NAMES if role not in stated]
    for names in zip(*NAMES.values(), strict=True):
        family = dict(zip(NAMES, names, strict=True))
        if all(family[role] in ids for role in missing):
            found |= {role: ids[family[role]] for role in missing}
            break
    for role, names in END_NAMES.items():
        present = [ids[name] for name in names if name in ids]
        if role not in found and present:
            found[role] = present[0]
    return found
