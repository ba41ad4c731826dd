"""What the tokens of a vocabulary are: their text in the file, their type, and the bytes they stand for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.errors import ModelFileError
from outrider.models.source import TokenizerData

# GGUF token types (`tokenizer.ggml.token_type`).
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# byte-level: every byte is one printable character (GPT-2). spaces: SentencePiece's U+2581 for a space.
PieceStyle: TypeAlias = Literal["byte-level", "spaces"]

SPACE_MARK = "\u2581"
_BYTE_PIECE = re.compile(r"<0x[0-9A-Fa-f]{2}>\Z")

# Tokens that are control tokens by their name, whatever type the file gives them (llama.cpp does so, for
# converters that marked them as ordinary text).
_CONTROL_NAMES = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<eos>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<PRE>",
    "▁<PRE>",
    "<｜fim▁begin｜>",
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<SUF>",
    "▁<SUF>",
    "<｜fim▁hole｜>",
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<MID>",
    "▁<MID>",
    "<｜fim▁end｜>",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
)


def byte_alphabet() -> list[str]:
    """The character that stands for each of the 256 bytes in a byte-level vocabulary (GPT-2's table).

    Printable Latin-1 characters stand for themselves, the others for U+0100 and up, in order.
    """
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(b if b in plain else next(spare)) for b in range(256)]


_BYTE_OF = {char: byte for byte, char in enumerate(byte_alphabet())}


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """A vocabulary without its merging rules.

    texts: the piece of each id as the file spells it ("Ġhello", "▁hello", "<0x0A>"); all different,
           but for empty ones, which match nothing.
    types: int32[n] of GGUF token types.
    """

    texts: tuple[str, ...]
    types: npt.NDArray[np.int32]
    style: PieceStyle
    _specials: frozenset[int] = field(init=False, repr=False)  # asked for with every token that is written

    def __post_init__(self) -> None:
        special = np.isin(self.types[: len(self.texts)], [CONTROL, UNKNOWN])
        object.__setattr__(self, "_specials", frozenset(np.flatnonzero(special).tolist()))

    @staticmethod
    def from_data(data: TokenizerData) -> Pieces:
        """The pieces of a GGUF vocabulary (`kind` "bpe" or "spm").

        Raises ModelFileError when it is empty, names a token twice, or its arrays do not fit together.
        """
        n = len(data.tokens)
        if n == 0:
            raise ModelFileError("the vocabulary is empty")
        if len(data.types) not in {0, n}:
            raise ModelFileError(f"the vocabulary has {n} tokens, but {len(data.types)} token types")
        types = np.array(data.types, np.int32) if len(data.types) else np.full(n, NORMAL, np.int32)
        ids = dict(zip(data.tokens, range(n), strict=True))
        if len(ids) != n:
            _refuse_duplicates(data.tokens)
        for name in _CONTROL_NAMES:
            if (token := ids.get(name)) is not None:
                types[token] = CONTROL
        for token in np.flatnonzero(types == BYTE).tolist():
            if not _BYTE_PIECE.match(data.tokens[token]):
                raise ModelFileError(
                    f"token {token} is marked as a byte, but is {data.tokens[token]!r} and not like '<0x0A>'"
                )
        return Pieces(data.tokens, types, "byte-level" if data.kind == "bpe" else "spaces")

    def __len__(self) -> int:
        return len(self.texts)

    def is_special(self, token: int) -> bool:
        """Whether the token is a control or unknown token, which text for people leaves out."""
        return token in self._specials

    def is_used(self, token: int) -> bool:
        """Whether the id means something: it is inside the vocabulary and not padding."""
        return (
            0 <= token < len(self.texts)
            and int(self.types[token]) != UNUSED
            and self.texts[token] not in {"", f"[PAD{token}]"}
        )

    def raw(self, token: int) -> bytes:
        """The bytes that the token adds to a text, special or not; b"" for padding and unknown ids."""
        if not 0 <= token < len(self.texts):
            return b""
        text, kind = self.texts[token], int(self.types[token])
        if kind == NORMAL:
            return _bytes_of(text, self.style)
        if kind == BYTE:
            return bytes((int(text[3:5], 16),))
        return text.encode() if kind in {CONTROL, UNKNOWN, USER_DEFINED} else b""

    def in_text(self, *, hidden: bool) -> Iterator[tuple[str, int]]:
        """The (text, id) pairs that are cut out of a text before anything else, longest (in bytes) first:
        user-defined tokens always, control and unknown tokens when `hidden`."""
        kinds = [USER_DEFINED, CONTROL, UNKNOWN] if hidden else [USER_DEFINED]
        ids = np.flatnonzero(np.isin(self.types, kinds)).tolist()
        found = [(self.texts[i], i) for i in ids if self.texts[i]]
        yield from sorted(found, key=lambda pair: -len(pair[0].encode()))


def split_special(text: str, specials: Sequence[tuple[str, int]]) -> list[str | int]:
    """Cut tokens written out in a text: the parts in order, a str for plain text and an int for a token.

    As in llama.cpp, an earlier entry of `specials` wins over a later one wherever they overlap, even when
    the later one starts further left. No part is empty.
    """
    parts: list[str | int] = [text] if text else []
    for piece, token in specials:
        if piece not in text:
            continue
        cut: list[str | int] = []
        for part in parts:
            if isinstance(part, int):
                cut.append(part)
                continue
            for n, plain in enumerate(part.split(piece)):
                if n:
                    cut.append(token)
                if plain:
                    cut.append(plain)
        parts = cut
    return parts


def _bytes_of(text: str, style: PieceStyle) -> bytes:
    if style == "spaces":
        return text.replace(SPACE_MARK, " ").encode()
    try:
        return bytes([_BYTE_OF[char] for char in text])
    except KeyError:  # an added token that was not written in the byte alphabet
        return text.encode()


def _refuse_duplicates(tokens: Sequence[str]) -> None:
    """Raise for the first token that has two ids. Empty tokens match nothing and may repeat."""
    first: dict[str, int] = {}
    for token, text in enumerate(tokens):
        if text and first.setdefault(text, token) != token:
            raise ModelFileError(f"the vocabulary holds {text!r} twice, as ids {first[text]} and {token}")
