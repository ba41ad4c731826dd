"""What is told of tokens and of the tokenizer, in the shapes of vLLM and llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outrider.server.http.service import Service

_CLASSES = {"bpe": "GPT2Tokenizer", "spm": "LlamaTokenizer", "json": "PreTrainedTokenizerFast"}


def tokens_with_pieces(service: Service, ids: Sequence[int]) -> dict[str, Any]:
    """llama.cpp's tokens with their texts; one that is not UTF-8 by itself is a list of bytes."""

    def piece(token: int) -> str | list[int]:
        raw = service.tokenizer.piece_bytes(token, skip_special=False)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return list(raw)

    return {"tokens": [{"id": token, "piece": piece(token)} for token in ids]}


def tokenizer_information(service: Service) -> dict[str, Any]:
    """vLLM's /tokenizer_info: the members of a tokenizer_config.json that are known."""
    tokenizer, data = service.tokenizer, service.pipeline.source.tokenizer
    named = {
        "bos": tokenizer.bos_id,
        "eos": tokenizer.eos_id,
        "unk": tokenizer.unk_id,
        "pad": tokenizer.pad_id,
    }
    return {
        "tokenizer_class": _CLASSES[data.kind],
        "vocab_size": tokenizer.vocab_size,
        "model_max_length": service.engine.context,
        "add_bos_token": tokenizer.add_bos,
        "add_eos_token": tokenizer.add_eos,
        **{
            f"{name}_token": None if token is None else tokenizer.pieces.texts[token]
            for name, token in named.items()
        },
        "chat_template": service.templates.source,
    }
