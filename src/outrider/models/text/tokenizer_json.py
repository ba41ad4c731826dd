"""A Hugging Face tokenizer.json, run by the `tokenizers` package."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from outrider.errors import ModelFileError, UnsupportedModelError
from outrider.models.source import TokenizerData
from outrider.models.text.faults import fault
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
    """What the file's decoder does: the style of the pieces, <0x0A> as bytes, the first blank dropped."""

    style: PieceStyle
    byte_fallback: bool
    strips_space: bool


class JsonEncoder:
    """Encodes whole texts, special tokens included, as the file says (normalizer and post-processor too).

    Raises ModelFileError when the text is no sound tokenizer.json, UnsupportedModelError when its pieces
    cannot be turned into bytes one by one.
    """

    def __init__(self, data: TokenizerData) -> None:
        try:
            tokenizer = Tokenizer.from_str(data.tokenizer_json)
            tokenizer.no_truncation()
            tokenizer.no_padding()
            state = json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder else None
        except BaseException as error:
            raise ModelFileError(f"tokenizer.json cannot be read: {fault(error)}") from None
        self._tokenizer = tokenizer
        self._bos = data.bos_id if data.add_bos else None
        self._eos = data.eos_ids[0] if data.add_eos else None
        self._lock = threading.Lock()
        decoder = _decoder(state)
        self.strips_space = decoder.strips_space
        self.pieces = _pieces(tokenizer, decoder)

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """The ids of a text. `parse_special` False leaves only the special tokens of the file unparsed;
        added tokens that are not special are cut out always."""
        with self._lock:  # the switch belongs to the tokenizer, not to the call
            self._tokenizer.encode_special_tokens = not parse_special
            # The batch call lets other threads run, unlike `encode`, and skips offsets.
            ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special)[0].ids
        # The file's post-processor usually adds these; a tokenizer_config.json may ask for them on top.
        if add_special and self._bos is not None and ids[:1] != [self._bos]:
            ids = [self._bos, *ids]
        if add_special and self._eos is not None and ids[-1:] != [self._eos]:
            ids = [*ids, self._eos]
        return ids


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
