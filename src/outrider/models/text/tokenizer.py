"""Tokenizers: as in llama.cpp for GGUF vocabularies, as in the `tokenizers` package for a tokenizer.json.

Qwen2's original tokenizer normalizes text to NFC first. llama.cpp does not, so neither does a tokenizer that
is built from a GGUF file.
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
    """The tokenizer of one model. Instances may be shared between threads.

    eos_id:       its own eos; `eos_ids` has every id that ends a text.
    fim_ids:      what the model's file says of the tokens for filling in, by role.
    named_tokens: the texts that chat templates know as bos_token, eos_token and so on.

    Ids outside the vocabulary and padding ids, which a model with padded embeddings can generate, decode to
    no text.
    """

    def __init__(self, data: TokenizerData, pieces: Pieces, encoder: _Encoder, *, strips_space: bool) -> None:
        """For `from_data` only."""
        self.pieces = pieces
        self._encoder = encoder
        self._strips_space = strips_space
        size = len(pieces)
        self.bos_id = _inside(data.bos_id, size)
        self.unk_id = _inside(data.unk_id, size)
        self.pad_id = _inside(data.pad_id, size)
        self.eos_ids = tuple(i for i in data.eos_ids if 0 <= i < size)
        self.eos_id = _inside(data.own_eos_id, size)
        self.fim_ids = {role: token for role, token in data.fim.items() if 0 <= token < size}
        self.add_bos = data.add_bos
        self.add_eos = data.add_eos
        self.named_tokens = self._named() if data.named is None else dict(data.named)
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_data(cls, data: TokenizerData) -> Tokenizer:
        """Build the tokenizer of a model file.

        Raises ModelFileError when the data is damaged or inconsistent, and UnsupportedModelError for an
        unsupported pre-tokenizer or decoder.
        """
        size = None if data.kind == "json" else len(data.tokens)
        for wanted, ids, name in (
            (data.add_bos, (data.bos_id,), "bos"),
            (data.add_eos, (data.own_eos_id,), "eos"),
        ):
            if wanted and not any(i is not None and i >= 0 and (size is None or i < size) for i in ids):
                raise ModelFileError(f"the tokenizer is to add {name}, but has no {name} token")
        if data.kind == "json":
            encoder = JsonEncoder(data)
            return cls(data, encoder.pieces, encoder, strips_space=encoder.strips_space)
        pieces = Pieces.from_data(data)
        strips = data.kind == "spm" and data.add_space_prefix
        return cls(data, pieces, _GgufEncoder(data, pieces), strips_space=strips)

    def _named(self) -> dict[str, str]:
        roles = {
            "bos_token": self.bos_id,
            "eos_token": self.eos_id,
            "unk_token": self.unk_id,
            "pad_token": self.pad_id,
        }
        return {role: self.pieces.texts[token] for role, token in roles.items() if token is not None}

    @property
    def vocab_size(self) -> int:
        """Number of ids, including padding that the vocabulary's list contains."""
        return len(self.pieces)

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """The ids of a text.

        add_special:   add bos before and eos after the text, as far as the model asks for it.
        parse_special: encode control tokens written in the text ("<|im_end|>") as these tokens. Otherwise
        they
                       are plain text, which is right for untrusted text.
        Raises PromptError for a text with a lone surrogate, which is not valid Unicode.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(_not_unicode(text, error.start)) from None
        return self._encoder.encode(text, add_special=add_special, parse_special=parse_special)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, continues: bool = False) -> str:
        """The text of ids; invalid UTF-8 becomes U+FFFD.

        skip_special: leave out control and unknown tokens.
        continues:    the ids continue an earlier text. Otherwise the space that a SentencePiece tokenizer
                      adds before a text is removed.
        """
        data = b"".join(self.piece_bytes(i, skip_special=skip_special) for i in ids)
        if self.strips_space and not continues:
            data = data.removeprefix(b" ")
        return data.decode(errors="replace")

    @property
    def strips_space(self) -> bool:
        """Whether the tokenizer adds a space before a text, which decoding removes."""
        return self._strips_space

    def piece_bytes(self, token: int, *, skip_special: bool = True) -> bytes:
        """The bytes of a token; b"" for padding, ids outside the vocabulary, and skipped special tokens."""
        if skip_special and self.pieces.is_special(token):
            return b""
        found = self._bytes.get(token)
        if found is None:
            found = self.pieces.raw(token)
            if found:  # ids without text are not cached, as there is no limit to their number
                self._bytes[token] = found
        return found

    def piece(self, token: int) -> str:
        """A token as text for messages, never empty."""
        if not 0 <= token < self.vocab_size:
            return f"[id {token} beyond the vocabulary]"
        shown = self.pieces.raw(token).decode(errors="backslashreplace")
        return shown or self.pieces.texts[token] or f"[empty {token}]"

    def is_special(self, token: int) -> bool:
        """Whether the id is a control or unknown token, which `decode` skips."""
        return self.pieces.is_special(token)


class _GgufEncoder:
    """Splits a text at special tokens, as llama.cpp does, and encodes the parts with BPE or SPM."""

    def __init__(self, data: TokenizerData, pieces: Pieces) -> None:
        self._inner = BpeEncoder(data) if data.kind == "bpe" else SpmEncoder(data, pieces)
        self._prefix = " " if data.kind == "spm" and data.add_space_prefix else ""
        self._specials = {special: tuple(pieces.split_tokens(special=special)) for special in (True, False)}
        self._before = [data.bos_id] if data.add_bos and data.bos_id is not None else []
        self._after = [data.own_eos_id] if data.add_eos and data.own_eos_id is not None else []

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        ids = list(self._before) if add_special else []
        prefix = self._prefix  # at the start of a text, and again after each special token
        for part in split_special(text, self._specials[parse_special]):
            if isinstance(part, int):
                ids.append(part)
                prefix = self._prefix
            else:
                ids += self._inner.encode(prefix + part)
                prefix = ""
        return ids + self._after if add_special else ids


def _not_unicode(text: str, at: int) -> str:
    code = ord(text[at])
    if 0xDC80 <= code <= 0xDCFF:  # how Python reads a byte of the command line that is not UTF-8
        return (
            f"the text is not UTF-8: character {at} is the byte 0x{code - 0xDC00:02X}, as in Latin-1;"
            " give the text in UTF-8"
        )
    return f"the text holds half of a surrogate pair at character {at}: it is not Unicode"


def _inside(token: int | None, size: int) -> int | None:
    return token if token is not None and 0 <= token < size else None
