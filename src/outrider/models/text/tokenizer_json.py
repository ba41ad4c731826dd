"""Encodes text as a Hugging Face tokenizer.json says, with the `tokenizers` package."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer
from tokenizers.pre_tokenizers import Metaspace

from outrider.errors import ModelFileError, UnsupportedModelError
from outrider.models.source import TokenizerData
from outrider.models.text.package_errors import describe_error
from outrider.models.text.pieces import (
    BYTE,
    CONTROL,
    NORMAL,
    SPACE_MARK,
    UNUSED,
    USER_DEFINED,
    Pieces,
    PieceStyle,
)


@dataclass(frozen=True, slots=True)
class _Decoder:
    """The file's decoder: the style of its pieces, whether pieces like <0x0A> are bytes, and whether it
    removes the first space of a text."""

    style: PieceStyle
    byte_fallback: bool
    strips_space: bool


class JsonEncoder:
    """Encodes texts with special tokens, by the normalizer, model and post-processor of the file.

    Raises ModelFileError when the file is not a valid tokenizer.json, UnsupportedModelError when its pieces
    cannot be converted to bytes one by one.
    """

    def __init__(self, data: TokenizerData) -> None:
        try:
            tokenizer = Tokenizer.from_str(data.tokenizer_json)
            tokenizer.no_truncation()
            tokenizer.no_padding()
            state = json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder else None
            if data.prepend_scheme is not None:
                tokenizer.normalizer = None
                tokenizer.pre_tokenizer = Metaspace(SPACE_MARK, data.prepend_scheme, split=False)
            _add(tokenizer, data)
        except ModelFileError:
            raise
        except BaseException as error:
            raise ModelFileError(f"tokenizer.json cannot be read: {describe_error(error)}") from None
        self._tokenizer = tokenizer
        self._bos = data.bos_id if data.add_bos else None
        self._eos = data.own_eos_id if data.add_eos else None
        self._lock = threading.Lock()
        decoder = _decoder(state)
        self.strips_space = decoder.strips_space and data.prepend_scheme != "never"
        self.pieces = _pieces(tokenizer, decoder)

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """The ids of a text. Without `parse_special`, special tokens in it are encoded as plain text; added
        tokens that are not special are always parsed."""
        with self._lock:  # encode_special_tokens is a property of the tokenizer, not an argument
            self._tokenizer.encode_special_tokens = not parse_special
            # The batch call lets other threads run, unlike `encode`, and skips offsets.
            ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special)[0].ids
        # The file's post-processor usually adds these.
        if add_special and self._bos is not None and ids[:1] != [self._bos]:
            ids = [self._bos, *ids]
        if add_special and self._eos is not None and ids[-1:] != [self._eos]:
            ids = [*ids, self._eos]
        return ids


def _add(tokenizer: Tokenizer, data: TokenizerData) -> None:
    """Add the folder's other tokens. Raises ModelFileError when one gets another id than expected."""
    flags = ("special", "lstrip", "rstrip", "single_word", "normalized")
    tokenizer.add_tokens(
        [AddedToken(p.content, **{name: getattr(p, name) for name in flags}) for p in data.added]
    )
    for piece in data.added:
        if (number := tokenizer.token_to_id(piece.content)) != piece.id:
            raise ModelFileError(f"the added token {piece.content!r} gets the id {number}, not {piece.id}")


def _pieces(tokenizer: Tokenizer, decoder: _Decoder) -> Pieces:
    vocab: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    if not vocab:
        raise ModelFileError("tokenizer.json has an empty vocabulary")
    size = max(vocab.values()) + 1
    if size > 2 * len(vocab) + 100_000:
        raise ModelFileError(f"tokenizer.json gives ids up to {size - 1} to only {len(vocab)} tokens")
    texts = [""] * size
    types = np.full(size, UNUSED, np.int32)
    for text, token in vocab.items():
        texts[token] = text
        types[token] = NORMAL
        if decoder.byte_fallback and len(text) == 6 and text.startswith("<0x"):
            types[token] = _byte_type(text)
    for token, added in tokenizer.get_added_tokens_decoder().items():
        types[token] = CONTROL if added.special else USER_DEFINED
    return Pieces(tuple(texts), types, decoder.style)


def _byte_type(text: str) -> int:
    try:
        return BYTE if f"<0x{int(text[3:5], 16):02X}>" == text.upper().replace("0X", "0x") else NORMAL
    except ValueError:
        return NORMAL


def _decoder(state: Any) -> _Decoder:
    """Read the decoder's JSON: ByteLevel, or SentencePiece's Metaspace or Replace with their helpers."""
    steps = list(_steps(state))
    names = {step.get("type") for step in steps}
    unknown = names - {"ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}
    marks = [s for s in steps if s.get("type") == "Replace" and s.get("pattern") == {"String": SPACE_MARK}]
    if names == {"ByteLevel"}:
        return _Decoder("byte-level", byte_fallback=False, strips_space=False)
    if unknown or "ByteLevel" in names or not (marks or "Metaspace" in names):
        listed = ", ".join(sorted(str(name) for name in names)) or "none"
        raise UnsupportedModelError(
            f"tokenizer.json has the decoder {listed}; supported: ByteLevel, and SentencePiece's"
        )
    strips = any(
        (s.get("type") == "Strip" and s.get("content") == " " and s.get("start", 0) > 0)
        or (s.get("type") == "Metaspace" and s.get("prepend_scheme") != "never")
        for s in steps
    )
    return _Decoder("spaces", byte_fallback="ByteFallback" in names, strips_space=strips)


def _steps(state: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(state, dict):
        return
    if state.get("type") == "Sequence":
        for step in state.get("decoders", ()):
            yield from _steps(step)
    else:
        yield state
