"""The tokens of a Hugging Face folder that are not in its tokenizer.json, and what templates call its tokens.

Tokens are added as transformers 5 adds them to the file's tokenizer: those of `added_tokens_decoder` in
tokenizer_config.json, or else of added_tokens.json (with special_tokens_map.json); then bos_token, eos_token
and so on, and the extra special tokens. Whatever these files say, the `tokenizers` package gives a token the
id of the same piece in the vocabulary, or else the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from outrider.errors import ModelFileError
from outrider.models.families import shown
from outrider.models.formats.hf_json import Section, encodes, read_optional
from outrider.models.source import AddedPiece

LIMIT = 16 << 20
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")
_NO_ID = -1

logger = logging.getLogger("outrider")


def parse_piece(path: Path, where: str, entry: object) -> AddedPiece:
    """A token with its flags, as these files write it; its id is not set. Raises ModelFileError."""
    content = entry.get("content") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(content, str):
        raise ModelFileError(f"{path}: {where} has an entry without content")
    flags = {name: entry[name] for name in _FLAGS if entry.get(name) is not None}
    if not all(isinstance(value, bool) for value in flags.values()):
        raise ModelFileError(f"{path}: {where} has flags of {shown(content)} that are not true or false")
    special = flags.get("special", False)
    return AddedPiece(content, _NO_ID, **{"special": special, "normalized": not special, **flags})


class AddedTokens:
    """What is added to the tokenizer of one folder.

    present: the file's own added tokens, by their texts.
    pieces:  what is added to them, in this order.
    named:   the texts of bos_token, eos_token and so on, and of tokens of this model alone such as
             image_token, as far as the folder names them.
    ids:     the id of every piece of the tokenizer.

    Tokens whose id would be beyond the model's embedding are left out, with a warning. Raises ModelFileError
    for a damaged file.
    """

    def __init__(
        self,
        folder: Path,
        settings: Section,
        vocabulary: Mapping[str, int],
        present: Iterable[AddedPiece],
        vocab_size: int,
    ) -> None:
        """settings: tokenizer_config.json. vocabulary: of the model in tokenizer.json. present: its added
        tokens. vocab_size: rows of the embedding."""
        self._vocab_size = vocab_size
        self._model_size = len(vocabulary)
        self.ids = dict(vocabulary)
        self._last = -1
        self._missing: list[str] = []
        self.pieces: tuple[AddedPiece, ...] = ()
        placed = [self._with_id(piece) for piece in present if piece.content]
        self.present = {piece.content: piece for piece in placed if piece.id < vocab_size}
        values = settings.values
        stated = values.get("added_tokens_decoder")
        if stated is not None:
            tokens = self._decoder(settings.path, stated)
        else:
            values, tokens = self._legacy(folder, settings)
        roles, extra = self._special(settings.path, values, tokens)
        self.named = {name: piece.content for name, piece in roles.items()}
        self._add(settings.path, tokens, [*roles.values(), *extra])

    def _decoder(self, path: Path, stated: object) -> dict[int, AddedPiece]:
        """added_tokens_decoder, in the order of its ids."""
        if not isinstance(stated, dict):
            raise ModelFileError(f"{path}: added_tokens_decoder is not an object")
        found = {}
        for text, entry in stated.items():
            if not (text.isascii() and text.isdigit() and len(text) < 10):
                raise ModelFileError(f"{path}: added_tokens_decoder has the id {shown(text)}")
            found[int(text)] = parse_piece(path, "added_tokens_decoder", entry)
        return dict(sorted(found.items()))

    def _legacy(self, folder: Path, settings: Section) -> tuple[dict[str, Any], dict[int, AddedPiece]]:
        """The values of tokenizer_config.json with those of special_tokens_map.json over them, and the tokens
        of added_tokens.json."""
        special = read_optional(folder / "special_tokens_map.json", LIMIT).values
        values = {**settings.values, **special}
        own, more = _extra(settings.values), _extra(special)
        if own and not isinstance(values.get("extra_special_tokens"), dict):
            more = more if "extra_special_tokens" in special else []
            values["extra_special_tokens"] = [*own, *(token for token in more if token not in own)]
        names = {str(_content(values.get(role))) for role in ROLES}
        names |= {str(_content(token)) for token in _extra(values)}
        added = read_optional(folder / "added_tokens.json", LIMIT)
        found = {}
        for content, number in added.values.items():
            if type(number) is not int or not 0 <= number < 1 << 32:
                raise ModelFileError(f"{added.path}: the token {shown(content)} has no id")
            found[number] = AddedPiece(
                content, _NO_ID, special=content in names, normalized=content not in names
            )
        return values, dict(sorted(found.items()))

    def _special(
        self, path: Path, values: Mapping[str, Any], tokens: Mapping[int, AddedPiece]
    ) -> tuple[dict[str, AddedPiece], list[AddedPiece]]:
        """The special tokens by their names, and the extra ones. A role takes over the flags of the same
        piece elsewhere."""
        known = {piece.content: piece for piece in tokens.values()}
        if values.get("added_tokens_decoder") is None:
            known |= self.present

        def special(where: str, value: object) -> AddedPiece:
            content = _content(value)
            if where in ROLES and isinstance(content, str) and content in known:
                piece = known[content]
            elif isinstance(value, str):
                piece = AddedPiece(value, _NO_ID, special=True)
            elif isinstance(value, dict):
                piece = parse_piece(path, where, {**value, "special": True})
            else:
                raise ModelFileError(f"{path}: {where} is not a token")
            return replace(piece, id=_NO_ID, special=True)

        named: dict[str, object] = {role: values[role] for role in ROLES if values.get(role) is not None}
        # Tokens that only this model has, such as image_token.
        named |= {
            key: value
            for key, value in values.items()
            if key not in ROLES and key.endswith("_token") and isinstance(value, str)
        }
        extra = values.get("extra_special_tokens")
        if isinstance(extra, dict):
            named |= {key: value for key, value in extra.items() if value is not None}
        roles = {name: special(shown(name)[1:-1], value) for name, value in named.items()}
        found = {name: piece for name, piece in roles.items() if piece.content}
        return found, [special("extra_special_tokens", token) for token in _extra(values)]

    def _add(self, path: Path, stated: Mapping[int, AddedPiece], special: list[AddedPiece]) -> None:
        names = {piece.content for piece in special}
        wanted = [
            (number, replace(piece, special=piece.special or piece.content in names))
            for number, piece in stated.items()
            if replace(self.present.get(piece.content, piece), id=_NO_ID) != piece
            or piece.content not in self.present
        ]
        added: list[AddedPiece] = []
        now = dict(self.present)
        for number, piece in (*wanted, *((None, piece) for piece in special)):
            if not encodes(piece.content):
                raise ModelFileError(f"{path}: the token {shown(piece.content)} is not Unicode")
            if not piece.content:
                continue
            placed = self._with_id(piece)
            if placed.id >= self._vocab_size:
                continue
            if number not in (None, placed.id):
                logger.warning(
                    "%s: gives the token %s the id %d; it gets %d, as in transformers",
                    path, shown(piece.content), number, placed.id,
                )  # fmt: skip
            if now.get(placed.content) != placed:
                now[placed.content] = placed
                added.append(placed)
        if missing := dict.fromkeys(self._missing):
            logger.warning(
                "%s: the token %s is beyond the model's %d rows, so it is left out%s",
                path.parent, shown(next(iter(missing))), self._vocab_size,
                "" if len(missing) == 1 else f", and {len(missing) - 1} more",
            )  # fmt: skip
        self.pieces = tuple(added)

    def _with_id(self, piece: AddedPiece) -> AddedPiece:
        """The piece with the id that the package gives it, which from then on is taken."""
        number = self.ids.get(piece.content)
        if number is None:
            number = max(self._last + 1, self._model_size)
            if number < self._vocab_size:
                self.ids[piece.content] = number
            else:
                self._missing.append(piece.content)
        if number < self._vocab_size:
            self._last = max(self._last, number)
        return replace(piece, id=number)


def _content(value: object) -> object:
    return value.get("content") if isinstance(value, dict) else value


def _extra(values: Mapping[str, Any]) -> list[Any]:
    """extra_special_tokens, or additional_special_tokens under its older name."""
    found = values.get("extra_special_tokens") or values.get("additional_special_tokens")
    return found if isinstance(found, list) else []
