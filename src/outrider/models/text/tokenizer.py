"""Text into token ids and back, equal to llama.cpp's for GGUF vocabularies and to the `tokenizers`
package's for a tokenizer.json.

Note on Qwen2: its original tokenizer normalizes text to NFC first; llama.cpp, and so this tokenizer, when
built from a GGUF file, does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from outrider.errors import ModelFileError, PromptError
from outrider.models.source import TokenizerData
from outrider.models.text.bpe import BpeEncoder
from outrider.models.text.pieces import Pieces, split_special
from outrider.models.text.spm import SpmEncoder
from outrider.models.text.tokenizer_json import JsonEncoder


class _Encoder(Protocol):
    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...


class Tokenizer:
    """The tokenizer of one model. Safe to share between threads.

    Ids outside the vocabulary and padding ids, which a model with padded embeddings can emit, stand for
    no text.
    """

    def __init__(self, data: TokenizerData, pieces: Pieces, encoder: _Encoder, *, strips_space: bool) -> None:
        """Use `Tokenizer.from_data`."""
        self.pieces = pieces
        self._encoder = encoder
        self._strips_space = strips_space
        size = len(pieces)
        self.bos_id = _inside(data.bos_id, size)
        self.unk_id = _inside(data.unk_id, size)
        self.pad_id = _inside(data.pad_id, size)
        self.eos_ids = tuple(i for i in data.eos_ids if 0 <= i < size)
        self.add_bos = data.add_bos
        self.add_eos = data.add_eos
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_data(cls, data: TokenizerData) -> Tokenizer:
        """Build the tokenizer that a model file describes.

        Raises ModelFileError when the description is damaged or contradicts itself, and
        UnsupportedModelError for a pre-tokenizer or decoder that is not known here.
        """
        size = None if data.kind == "json" else len(data.tokens)
        for wanted, ids, name in (
            (data.add_bos, (data.bos_id,), "bos"),
            (data.add_eos, data.eos_ids[:1], "eos"),
        ):
            if wanted and not any(i is not None and i >= 0 and (size is None or i < size) for i in ids):
                raise ModelFileError(f"the tokenizer is to add {name}, but has no {name} token")
        if data.kind == "json":
            encoder = JsonEncoder(data)
            return cls(data, encoder.pieces, encoder, strips_space=encoder.strips_space)
        pieces = Pieces.from_data(data)
        strips = data.kind == "spm" and data.add_space_prefix
        return cls(data, pieces, _GgufEncoder(data, pieces), strips_space=strips)

    @property
    def vocab_size(self) -> int:
        """Number of ids, padding in the vocabulary's own list included."""
        return len(self.pieces)

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """The ids of a text.

        add_special:   put the model's bos in front and its eos behind, where the model asks for it.
        parse_special: read control tokens written in the text ("<|im_end|>") as these tokens; else they
                       are plain text, as text from strangers should be.
        Raises PromptError for a text that is not Unicode (half of a surrogate pair).
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(
                f"the text holds half of a surrogate pair at character {error.start}: it is not Unicode"
            ) from None
        return self._encoder.encode(text, add_special=add_special, parse_special=parse_special)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, continues: bool = False) -> str:
        """The text of ids; bytes that are no UTF-8 become U+FFFD.

        skip_special: leave out control and unknown tokens.
        continues:    the ids follow a text that is already there. Otherwise the blank that a SentencePiece
                      tokenizer puts in front of a text is taken off.
        """
        data = b"".join(self.piece_bytes(i, skip_special=skip_special) for i in ids)
        if self.strips_space and not continues:
            data = data.removeprefix(b" ")
        return data.decode(errors="replace")

    @property
    def strips_space(self) -> bool:
        """Whether the first blank of a decoded text is the tokenizer's own and is taken off."""
        return self._strips_space

    def piece_bytes(self, token: int, *, skip_special: bool = True) -> bytes:
        """The bytes that a token adds to a text; b"" for ids that stand for none, and for special tokens
        when they are skipped."""
        if skip_special and self.pieces.is_special(token):
            return b""
        found = self._bytes.get(token)
        if found is None:
            found = self.pieces.raw(token)
            if found:  # ids without text are not kept: there is no end of them
                self._bytes[token] = found
        return found

    def piece(self, token: int) -> str:
        """A token as text, for messages: always something to see."""
        if not 0 <= token < self.vocab_size:
            return f"[id {token} beyond the vocabulary]"
        shown = self.pieces.raw(token).decode(errors="backslashreplace")
        return shown or self.pieces.texts[token] or f"[empty {token}]"

    def is_special(self, token: int) -> bool:
        """Whether the id is a control or unknown token, which `decode` skips."""
        return self.pieces.is_special(token)


class _GgufEncoder:
    """Cuts special tokens out of the text as llama.cpp does, and gives the rest to the BPE or SPM encoder."""

    def __init__(self, data: TokenizerData, pieces: Pieces) -> None:
        self._inner = BpeEncoder(data) if data.kind == "bpe" else SpmEncoder(data, pieces)
        self._blank = " " if data.kind == "spm" and data.add_space_prefix else ""
        self._specials = {hidden: tuple(pieces.in_text(hidden=hidden)) for hidden in (True, False)}
        self._before = [data.bos_id] if data.add_bos and data.bos_id is not None else []
        self._after = list(data.eos_ids[:1]) if data.add_eos else []

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        ids = list(self._before) if add_special else []
        blank = self._blank  # at the start of a text, and again after each special token
        for part in split_special(text, self._specials[parse_special]):
            if isinstance(part, int):
                ids.append(part)
                blank = self._blank
            else:
                ids += self._inner.encode(blank + part)
                blank = ""
        return ids + self._after if add_special else ids


def _inside(token: int | None, size: int) -> int | None:
    return token if token is not None and 0 <= token < size else None
