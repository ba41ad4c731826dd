"""Reads the tokenizer, the end-of-turn ids and the chat template of a Hugging Face folder."""

from __future__ import annotations

import contextlib
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from outrider.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from outrider.models.families import END_OF_TURN, shown
from outrider.models.formats.hf_added_tokens import AddedTokens, parse_piece
from outrider.models.formats.hf_json import Section, parse_object, read_optional, read_text
from outrider.models.source import AddedPiece, TokenizerData

TOKENIZER_LIMIT = 64 << 20
CONFIG_LIMIT = 16 << 20
TEMPLATE_LIMIT = 1 << 20
MAX_TEMPLATES = 32

logger = logging.getLogger("outrider")


def read_tokenizer(folder: Path, config: Section, vocab_size: int) -> tuple[TokenizerData, dict[str, str]]:
    """The tokenizer of `folder`, and its chat templates by name; "default" is that of all conversations.

    eos_ids come from generation_config.json, config.json, tokenizer_config.json and the well-known
    special tokens, in this order. Tokens and ids beyond the model's `vocab_size` rows are left out, with a
    warning. Raises ModelFileError for files that are damaged, UnsupportedModelError for a folder without
    tokenizer.json. As in transformers 5, its post-processor alone says whether bos and eos are added to a
    text, not the add_bos_token of tokenizer_config.json.
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
    vocabulary = _vocabulary(parsed, vocab_size)
    stated = _stated_ids(parsed)
    added = AddedTokens(folder, settings, vocabulary, stated, vocab_size)
    if len(added.present) < len(stated):
        kept = [t for t in parsed.values["added_tokens"] if t["content"] in added.present]
        text = json.dumps({**parsed.values, "added_tokens": kept})
    for piece in stated:
        placed = added.present.get(piece.content, piece)
        if placed.id != piece.id:
            logger.warning(
                "%s: gives the token %s the id %d; it gets %d, as in transformers",
                path, shown(piece.content), piece.id, placed.id,
            )  # fmt: skip

    def named(role: str) -> list[int]:
        content = added.named.get(f"{role}_token")
        return [added.ids[content]] if content in added.ids else []

    def first(role: str) -> int | None:
        ids = named(role) + config.ids(f"{role}_token_id", vocab_size)
        return ids[0] if ids else None

    ends = generation.ids("eos_token_id", vocab_size) + config.ids("eos_token_id", vocab_size) + named("eos")
    ends += [
        added.ids[piece.content]
        for piece in (*added.present.values(), *added.pieces)
        if piece.special and piece.content in END_OF_TURN
    ]
    data = TokenizerData(
        kind="json",
        tokenizer_json=text,
        bos_id=first("bos"),
        eos_id=next(iter(named("eos")), None),
        eos_ids=tuple(dict.fromkeys(ends)),
        unk_id=first("unk"),
        pad_id=first("pad"),
        named=added.named,
        added=added.pieces,
        prepend_scheme=_prepend_scheme(config, settings, parsed),
    )
    return data, _chat_templates(folder, settings)


def _prepend_scheme(
    config: Section, settings: Section, parsed: Section
) -> Literal["always", "first", "never"] | None:
    """Where a SentencePiece tokenizer of Llama puts a blank in front. transformers 5 builds such a tokenizer
    anew when the folder calls it a LlamaTokenizer: `legacy` then decides, not the normalizer in the file."""
    name = settings.values.get("tokenizer_class") or config.values.get("tokenizer_class")
    model = parsed.section("model")
    if (
        not isinstance(name, str)
        or name.removesuffix("Fast") != "LlamaTokenizer"
        or config.values.get("model_type") != "llama"
        or model is None
        or model.values.get("type") != "BPE"
        or _has_byte_level(parsed)
    ):
        return None
    if not settings.flag("add_prefix_space", True):
        return "never"
    return "always" if settings.flag("legacy", False) else "first"


def _has_byte_level(parsed: Section) -> bool:
    """Whether the file's pre-tokenizer or decoder is byte-level, or one of its steps."""
    for key, steps in (("pre_tokenizer", "pretokenizers"), ("decoder", "decoders")):
        section = parsed.values.get(key)
        inner = section.get(steps) if isinstance(section, dict) else None
        found = [section, *(inner if isinstance(inner, list) else ())]
        if any(isinstance(step, dict) and step.get("type") == "ByteLevel" for step in found):
            return True
    return False


def _vocabulary(parsed: Section, vocab_size: int) -> dict[str, int]:
    """The pieces of the file's model with their ids, which must be below vocab_size."""
    model = parsed.section("model")
    vocab: Any = model.values.get("vocab") if model is not None else None
    if isinstance(vocab, list):  # the Unigram model: [piece, score] pairs; the id is the index
        pieces = {p[0]: i for i, p in enumerate(vocab) if isinstance(p, list) and p and isinstance(p[0], str)}
    elif isinstance(vocab, dict):
        pieces = vocab
    else:
        raise ModelFileError(f"{parsed.path}: model.vocab is missing")
    for piece, number in pieces.items():
        if type(number) is not int or not 0 <= number < vocab_size:
            raise ModelFileError(f"{parsed.path}: the token {shown(piece)} has no id below {vocab_size}")
    return pieces


def _stated_ids(parsed: Section) -> list[AddedPiece]:
    """The added tokens of tokenizer.json, with the ids that it gives them; of equal texts the last."""
    added = parsed.values.get("added_tokens") or []
    if not isinstance(added, list):
        raise ModelFileError(f"{parsed.path}: added_tokens is not a list")
    found: dict[str, AddedPiece] = {}
    for token in added:
        piece = parse_piece(parsed.path, "added_tokens", token)
        number = token.get("id")
        if type(number) is not int or not 0 <= number < 1 << 32:
            raise ModelFileError(f"{parsed.path}: the token {shown(piece.content)} has no id")
        found[piece.content] = replace(piece, id=number)
    return list(found.values())


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
