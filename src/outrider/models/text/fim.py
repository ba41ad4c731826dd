"""Fill in the middle (Bavarian et al. 2022): the prompt for a text between two others, from a vocabulary's
tokens for it. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outrider.errors import PromptError
from outrider.models.text.tokenizer import Tokenizer

# By role: the names in vocabularies of Qwen, StarCoder, Granite, DeepSeek, CodeLlama, GLM and Codestral.
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
ENDS = (
    *("<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<|repo_name|>", "<|fim_repo|>", "<fim-repo>", "<reponame>"),
    *("<|file_sep|>", "<file_sep>", "<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>"),
    *("▁<EOT>", "<EOT>", "_<EOT>"),
)


@dataclass(frozen=True, slots=True)
class FimTokens:
    """The ids of a vocabulary's tokens for filling in.

    ends:         ids that end the text that is filled in, besides those that end any text.
    suffix_first: the prompt has the suffix before the prefix, and no token before the middle.
    """

    prefix: int
    suffix: int
    middle: int
    ends: frozenset[int]
    suffix_first: bool = False


def fim_tokens(tokenizer: Tokenizer) -> FimTokens | None:
    """The tokens of a vocabulary, found by their names; None when one of the three is missing."""
    wanted = {name for names in (*NAMES.values(), ENDS) for name in names}
    ids = {text: token for token, text in enumerate(tokenizer.pieces.texts) if text in wanted}
    for prefix, suffix, middle in zip(*NAMES.values(), strict=True):
        if prefix in ids and suffix in ids and middle in ids:
            ends = frozenset(ids[name] for name in ENDS if name in ids)
            first = prefix == "[PREFIX]"
            return FimTokens(ids[prefix], ids[suffix], ids[middle], ends, first)
    return None


def fim_prompt(
    tokenizer: Tokenizer, tokens: FimTokens, prefix: str | Sequence[int], suffix: str
) -> list[int]:
    """The prompt's ids for the text between `prefix` (a text or its ids) and `suffix`. Marks that are written
    in a text are plain text. Raises PromptError for text that is not Unicode."""
    before = list(prefix) if not isinstance(prefix, str) else _plain(tokenizer, prefix)
    after = _plain(tokenizer, suffix)
    bos = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    if tokens.suffix_first:
        return [*bos, tokens.suffix, *after, tokens.prefix, *before]
    return [*bos, tokens.prefix, *before, tokens.suffix, *after, tokens.middle]


def _plain(tokenizer: Tokenizer, text: str) -> list[int]:
    if not text:
        return []
    return tokenizer.encode(text, add_special=False, parse_special=False)


def needed(tokens: FimTokens | None) -> FimTokens:
    """The tokens, or PromptError (one line) for a model without them."""
    if tokens is None:
        raise PromptError(
            "the model's vocabulary has no tokens for filling in between two texts (such as <|fim_prefix|>): "
            "leave suffix out, or serve a model for code that has them"
        )
    return tokens
