"""Record what transformers makes of folders with tokens outside tokenizer.json, for the tokenizer tests.

    python tests/scripts/record_added_tokens.py

Writes tests/data/tokenizer/added_tokens.json. It needs the package transformers.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.models import tiny_tokenizer

PATH = Path(__file__).resolve().parent.parent / "data" / "tokenizer" / "added_tokens.json"
ROWS = 340  # of the embedding: 320 pieces and some padding

TEXTS = [
    "a<|tool|> b",
    "hi <think>x</think>",
    "u  <|pad|>  y",
    "<|im_end|>  z",
    "word keyword words a word",
    "<|far|>er<|stop|>",
    "<TOOL> <tool>",
    "<|a|><|b|> <image><boi>",
    "the <|im_start|> FOX<|im_end|>",
    "the</s>the <s>  the the</s> a",
    "",
]


def token(content: str, **flags: bool) -> dict[str, Any]:
    names = ("special", "lstrip", "rstrip", "single_word", "normalized")
    return {"content": content, **dict.fromkeys(names, False), **flags}


def typed(content: str, **flags: bool) -> dict[str, Any]:
    return {"__type": "AddedToken", **token(content, **flags)}


ENDS = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}

LLAMA: tuple[dict[str, Any], ...] = (
    {"tokenizer_class": "LlamaTokenizer"},
    {"tokenizer_class": "LlamaTokenizerFast", "legacy": False, "add_bos_token": True},
    {"tokenizer_class": "LlamaTokenizer", "legacy": True},
    {"tokenizer_class": "LlamaTokenizer", "legacy": None, "add_prefix_space": None},
    {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False},
    {"tokenizer_class": "PreTrainedTokenizerFast", "legacy": False},
    {"legacy": False},
)
LLAMA_ENDS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

# Name of a case: (variant of tokenizer.json, the folder's other files).
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "nothing": ("plain", {}),
    "decoder": (
        "plain",
        {
            "tokenizer_config.json": {
                **ENDS,
                "added_tokens_decoder": {
                    "320": token("<|tool|>", special=True),
                    "321": token("<think>"),
                    "322": token("<|pad|>", special=True, lstrip=True, rstrip=True),
                    "323": token("word", single_word=True, normalized=True),
                },
            }
        },
    ),
    "other-flags": (
        "plain",
        {
            "tokenizer_config.json": {
                **ENDS,
                "added_tokens_decoder": {
                    "1": token("<|im_start|>"),
                    "2": token("<|im_end|>", special=True, rstrip=True),
                },
            }
        },
    ),
    "other-order": (
        "plain",
        {
            "tokenizer_config.json": {
                "added_tokens_decoder": {"321": token("<|far|>"), "320": token("<|stop|>")}
            }
        },
    ),
    "gap": ("plain", {"tokenizer_config.json": {"added_tokens_decoder": {"330": token("<|far|>")}}}),
    "piece": ("plain", {"tokenizer_config.json": {"added_tokens_decoder": {"330": token("er")}}}),
    "named": (
        "plain",
        {
            "tokenizer_config.json": {
                "bos_token": "<|far|>",
                "eos_token": "<|stop|>",
                "pad_token": typed("<|pad|>", lstrip=True),
                "image_token": "<image>",
                "extra_special_tokens": ["<|a|>", "<|im_end|>"],
                "added_tokens_decoder": {
                    "320": token("<|stop|>", rstrip=True, normalized=True),
                    "321": token("<|a|>", lstrip=True, special=True),
                },
            }
        },
    ),
    "extra": ("plain", {"tokenizer_config.json": {"extra_special_tokens": {"boi_token": "<boi>"}}}),
    "old-extra": (
        "plain",
        {"tokenizer_config.json": {**ENDS, "additional_special_tokens": ["<|a|>", "<|b|>"]}},
    ),
    "legacy": (
        "plain",
        {
            "added_tokens.json": {"<tool>": 321, "<|pad|>": 320, "<TOOL>": 322},
            "special_tokens_map.json": {
                "bos_token": "<|im_start|>",
                "eos_token": token("<|im_end|>", rstrip=True),
                "pad_token": "<|pad|>",
                "unk_token": token("<|far|>", lstrip=True),
                "additional_special_tokens": ["<|a|>", "<|b|>"],
            },
        },
    ),
    "legacy-and-config": (
        "plain",
        {
            "tokenizer_config.json": {"eos_token": "<|stop|>", "pad_token": "<|pad|>"},
            "special_tokens_map.json": {"eos_token": "<|im_end|>"},
            "added_tokens.json": {"<tool>": 320},
        },
    ),
    "decoder-over-legacy": (
        "plain",
        {
            "tokenizer_config.json": {
                "eos_token": "<|stop|>",
                "added_tokens_decoder": {"320": token("<|b|>")},
            },
            "special_tokens_map.json": {"eos_token": "<|im_end|>"},
            "added_tokens.json": {"<tool>": 320},
        },
    ),
    "lower": (
        "lower",
        {
            "tokenizer_config.json": {
                "added_tokens_decoder": {
                    "320": token("<TOOL>", normalized=True),
                    "321": token("<Think>"),
                    "322": token("FOX", normalized=True, single_word=True),
                }
            }
        },
    ),
    "template": ("template", {"tokenizer_config.json": ENDS}),
    "template-off": ("template", {"tokenizer_config.json": {**ENDS, "add_bos_token": False}}),
    "adds-bos": ("plain", {"tokenizer_config.json": {**ENDS, "add_bos_token": True}}),
    "adds-both": (
        "template",
        {"tokenizer_config.json": {**ENDS, "add_bos_token": True, "add_eos_token": True}},
    ),
    "adds-without-token": (
        "plain",
        {"tokenizer_config.json": {"add_bos_token": True, "eos_token": "<|im_end|>"}},
    ),
    "flag-null": ("template", {"tokenizer_config.json": {**ENDS, "add_bos_token": None}}),
}
CASES |= {
    f"llama-{n}": ("pieces", {"tokenizer_config.json": {**LLAMA_ENDS, **values}})
    for n, values in enumerate(LLAMA)
}


def tokenizer_json(variant: str) -> str:
    """The tokenizer of tests/support/models.py, with a normalizer or with a template that adds a token."""
    if variant == "pieces":
        return json.dumps(sentence_pieces())
    document = json.loads(tiny_tokenizer().to_str())
    if variant == "lower":
        document["normalizer"] = {"type": "Lowercase"}
    if variant == "template":
        pieces = [
            {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ]
        document["post_processor"] = {
            "type": "TemplateProcessing",
            "single": pieces,
            "pair": [*pieces, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {
                "<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}
            },
        }
    return json.dumps(document)


def sentence_pieces() -> dict[str, Any]:
    """A tokenizer.json as that of Llama 2."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    merges = [("\u2581", "a"), ("\u2581", "t"), ("\u2581t", "h"), ("\u2581th", "e"), ("\u2581", "\u2581")]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *letters]
    pieces += [left + right for left, right in merges]
    start = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    mark = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    blank = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    normalizers = [{"type": "Prepend", "prepend": "\u2581"}, mark]
    special = ["<unk>", "<s>", "</s>"]
    return {
        "version": "1.0",
        "added_tokens": [{**token(text, special=True), "id": n} for n, text in enumerate(special)],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [start, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [start, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [blank, {"type": "ByteFallback"}, {"type": "Fuse"}, strip],
        },
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {piece: n for n, piece in enumerate(pieces)},
            "merges": [list(pair) for pair in merges],
        },
    }


def write_case(folder: Path, name: str) -> None:
    """The tokenizer's files of a case."""
    variant, files = CASES[name]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer_json(variant))
    for file, values in files.items():
        (folder / file).write_text(json.dumps(values))


def record(folder: Path) -> dict[str, Any]:
    transformers = importlib.import_module("transformers")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return {
        "named": tokenizer.special_tokens_map,
        "special": sorted(i for i, t in tokenizer.added_tokens_decoder.items() if t.special),
        "ids": [tokenizer(text).input_ids for text in TEXTS],
        "bare": [tokenizer(text, add_special_tokens=False).input_ids for text in TEXTS],
        "plain": [
            tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids for text in TEXTS
        ],
    }


def main() -> None:
    found = {}
    with tempfile.TemporaryDirectory() as place:
        for name in CASES:
            write_case(Path(place) / name, name)
            found[name] = record(Path(place) / name)
    lines = (f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in found.items())
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
