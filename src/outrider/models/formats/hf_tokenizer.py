"""Reads the tokenizer, the end-of-turn ids and the chat template of a Hugging Face folder."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from outrider.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from outrider.models.families import END_OF_TURN, shown
from outrider.models.formats.hf_json import Section, parse_object, read_optional, read_text
from outrider.models.source import TokenizerData

TOKENIZER_LIMIT = 64 << 20
CONFIG_LIMIT = 16 << 20
TEMPLATE_LIMIT = 1 << 20
MAX_TEMPLATES = 32


def read_tokenizer(folder: Path, config: Section, vocab_size: int) -> tuple[TokenizerData, dict[str, str]]:
    """The tokenizer of `folder`, and its chat templates by name; "default" is that of all conversations.

    eos_ids come from generation_config.json, config.json, tokenizer_config.json and the well-known
    special tokens, in this order. Raises ModelFileError for files that are damaged or ids out of range,
    UnsupportedModelError for a folder without tokenizer.json.
    """
    path = folder / "tokenizer.json"
    try:
        text = read_text(path, TOKENIZER_LIMIT)
    except ModelNotFoundError as error:
        raise UnsupportedModelError(
            f"{folder}: has no tokenizer.json; save the model's fast tokenizer there with save_pretrained"
        ) from error
    parsed = Section(path, parse_object(path, text))
    settings = read_optional(folder / "tokenizer_config.json", CONFIG_LIMIT)
    generation = read_optional(folder / "generation_config.json", CONFIG_LIMIT)
    pieces, special = _pieces(parsed, vocab_size)

    def named(key: str) -> list[int]:
        value = settings.values.get(key)
        piece = value.get("content") if isinstance(value, dict) else value
        if piece is not None and not isinstance(piece, str):
            raise ModelFileError(f"{settings.path}: {key} is not a token")
        return [pieces[piece]] if piece in pieces else []

    def first(key: str) -> int | None:
        ids = named(f"{key}_token") + config.ids(f"{key}_token_id", vocab_size)
        return ids[0] if ids else None

    ends = generation.ids("eos_token_id", vocab_size) + config.ids("eos_token_id", vocab_size)
    ends += named("eos_token") + [pieces[piece] for piece in special if piece in END_OF_TURN]
    data = TokenizerData(
        kind="json",
        tokenizer_json=text,
        bos_id=first("bos"),
        eos_ids=tuple(dict.fromkeys(ends)),
        unk_id=first("unk"),
        pad_id=first("pad"),
    )
    return data, _chat_templates(folder, settings)


def _pieces(parsed: Section, vocab_size: int) -> tuple[dict[str, int], list[str]]:
    """The pieces with their ids, which must be below vocab_size, and the pieces of special tokens."""
    model = parsed.section("model")
    vocab: Any = model.values.get("vocab") if model is not None else None
    if isinstance(vocab, list):  # the Unigram model: [piece, score] pairs; the id is the index
        pieces = {p[0]: i for i, p in enumerate(vocab) if isinstance(p, list) and p and isinstance(p[0], str)}
    elif isinstance(vocab, dict):
        pieces = dict(vocab)
    else:
        raise ModelFileError(f"{parsed.path}: model.vocab is missing")
    added = parsed.values.get("added_tokens") or []
    if not isinstance(added, list):
        raise ModelFileError(f"{parsed.path}: added_tokens is not a list")
    special: list[str] = []
    for token in added:
        content = token.get("content") if isinstance(token, dict) else None
        if not isinstance(content, str):
            raise ModelFileError(f"{parsed.path}: added_tokens has an entry without content")
        pieces[content] = token.get("id")
        if token.get("special") is True:
            special.append(content)
    for piece, number in pieces.items():
        if type(number) is not int or not 0 <= number < vocab_size:
            raise ModelFileError(f"{parsed.path}: the token {shown(piece)} has no id below {vocab_size}")
    return pieces, special


def _chat_templates(folder: Path, settings: Section) -> dict[str, str]:
    """The templates of tokenizer_config.json, one or a list of named ones, over which those in files of their
    own have precedence, as in transformers."""
    value = settings.values.get("chat_template")
    named: list[Any] = [{"name": "default", "template": value}]
    if isinstance(value, list):
        named = [entry for entry in value if isinstance(entry, dict)][:MAX_TEMPLATES]
    found: dict[str, str] = {}
    for entry in named:
        if entry.get("template") is not None and isinstance(entry.get("name"), str):
            template = Section(settings.path, {"chat_template": entry["template"]}).text("chat_template")
            if len(template) > TEMPLATE_LIMIT:
                raise ModelFileError(
                    f"{settings.path}: chat_template has more than {TEMPLATE_LIMIT} characters"
                )
            found[entry["name"]] = template
    files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    files["default"] = folder / "chat_template.jinja"
    for name, path in [*files.items()][-MAX_TEMPLATES:]:
        with contextlib.suppress(ModelNotFoundError):
            found[name] = read_text(path, TEMPLATE_LIMIT)
    return found
