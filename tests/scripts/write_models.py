"""Writes the tables of docs/models.md from the tables of families, weight types, tool calls and reasoning.

python tests/scripts/write_models.py
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from outrider.engines.native import _core
from outrider.models.families import FAMILIES, Family
from outrider.models.formats.hf_wrapper import WRAPPERS
from outrider.models.text.reasoning import FORMATS, PARSERS, format_of
from outrider.models.text.tool_families import TOOL_PARSERS
from outrider.models.weight_types import BLOCKS, FLOAT_TYPES, FOLDER_TYPES, LOADED_ONLY
from outrider.server.http.tool_forms import ANYWHERE, AT_START, family_of

TESTS = Path(__file__).resolve().parents[1]
DOCUMENT = TESTS.parent / "docs" / "models.md"
_TABLE = re.compile(r"(<!-- (\w+): begin -->\n).*?(<!-- \2: end -->)", re.S)

TITLES = {
    "llama": "Llama, Mistral, and everything that is stored as a Llama",
    "qwen2": "Qwen2, Qwen2.5",
    "qwen3": "Qwen3, dense",
    "gemma3": "Gemma 3, text",
    "granite": "Granite, dense",
    "smollm3": "SmolLM3",
    "olmo2": "OLMo 2",
    "phi3": "Phi-3, Phi-4-mini",
    "mistral3": "Ministral 3, text",
}
# What chat templates of the family's published models contain: of tool calls, and of reasoning.
TEMPLATES = {
    "llama": (('"parameters"', "[func_name", "[TOOL_CALLS]"), ()),
    "qwen2": (("<tool_call>",), ()),
    "qwen3": (("<tool_call>",), ("<think>",)),
    "gemma3": ((), ()),
    "granite": (("<|tool_call|>",), ("Here is my thought process:",)),
    "smollm3": (("<tool_call>",), ("<think>",)),
    "olmo2": ((), ()),
    "phi3": (("<|tool|>",), ("<think>",)),
    "mistral3": (("[TOOL_CALLS]",), ("[THINK]",)),
}
# The models of the catalog that tests compare with llama.cpp's or transformers' results on the same file.
REAL = {"llama": "SmolLM2 135M", "gemma3": "Gemma 3 270M"}
# What the folders' types come from, and the cases of tests/data/reference/quantized.npz that say so.
FOLDERS = {
    "W4": ("AWQ, GPTQ, compressed-tensors", ("awq", "w4 zeros")),
    "W8": ("GPTQ, compressed-tensors", ("w8 zeros", "w8 channel")),
    "F8": ("compressed-tensors, fp8", ("fp8 channel", "fp8 blocks")),
}


def tables() -> dict[str, str]:
    """The tables in Markdown, by the names that the document's marks have."""
    return {
        "families": _table(
            "| family | GGUF | folder | beside a Llama's parts | tool calls | reasoning | compared with |",
            [_family_row(family) for family in FAMILIES.values()],
        ),
        "types": _table(
            "| type | found in | bits a weight: file | as held | activations | decoded as by |", _type_rows()
        ),
        "tools": _table("| form | `--tool-call-parser` | a call begins with |", _tool_rows()),
        "reasoning": _table(
            "| form | `--reasoning-parser` | thoughts begin with | and end with |", _reasoning_rows()
        ),
    }


def written(text: str) -> str:
    """A document with its tables written anew."""
    found = tables()
    return _TABLE.sub(lambda mark: f"{mark[1]}\n{found[mark[2]]}\n{mark[3]}", text)


def _family_row(family: Family) -> str:
    classes = [kind.name for kind in family.classes]
    wrappers = [name for name, made in WRAPPERS.items() if set(made.texts.values()) & set(classes)]
    tools, thoughts = TEMPLATES[family.name]
    forms = list(dict.fromkeys(family_of(text) for text in tools))
    made = [form.name for text in thoughts if (form := format_of(text)) is not None]
    cells = (
        TITLES[family.name],
        f"`{family.name}`",
        ", ".join(f"`{name}`" for name in (*classes, *wrappers)),
        ", ".join(_parts(family)) or "none",
        ", ".join(f"`{form}`" for form in forms) or "none of its own",
        ", ".join(f"`{form}`" for form in made) or "none",
        ", ".join(_compared(family)),
    )
    return f"| {' | '.join(cells)} |"


def _parts(family: Family) -> list[str]:
    norms = family.norms
    kinds = family.classes
    said = {
        "biases of q, k and v": bool(family.required_bias),
        "biases where the file has them": bool(family.optional_bias),
        "norms of queries and keys": norms.q and not norms.whole_qk,
        "norms of all queries and keys together": norms.q and norms.whole_qk,
        "norms after attention and feed-forward": norms.post_attention and norms.attention,
        "norms only after attention and feed-forward": norms.post_attention and not norms.attention,
        "GeLU": family.activation != "silu",
        "sliding windows": any(kind.window is not None for kind in kinds) and not family.window_ignored,
        "two rotary bases": family.local_theta is not None,
        "layers without rotation": bool(family.unrotated_period),
        "scaled embedding": family.scaled_embedding,
        "factors of its own (embedding, attention, layers, logits)": any(kind.multipliers for kind in kinds),
        "fused matrices": bool(family.fused),
        "rotation of a part of each head": any(kind.partial_rope for kind in kinds),
        "queries that grow with their position": any(kind.query_growth for kind in kinds),
    }
    return [words for words, here in said.items() if here]


def _compared(family: Family) -> list[str]:
    with np.load(TESTS / "data/reference/families.npz") as record:
        has = set(record.keys())
    found = ["transformers"] if f"{family.name}.logits" in has else []
    if {f"{family.name}.llama_cpp", f"{family.name}.llama_cpp_q8"} <= has:
        found.append("llama.cpp")
    return found + ([f"{REAL[family.name]} itself"] if family.name in REAL else [])


def _type_rows() -> list[str]:
    with np.load(TESTS / "data/reference/quantized.npz") as record:
        cases = {name.partition(".")[0] for name in record}
    rows = []
    for name, (values, size) in BLOCKS.items():
        held = _core.packed_bytes(name, 1024, 4096) * 8 / (1024 * 4096)
        where, decoded = "GGUF", "the gguf package"
        if name in LOADED_ONLY:
            where, decoded = "nothing: drafts are quantized to it", "its definition"
        elif name in FOLDER_TYPES:
            where, wanted = FOLDERS[name[:2]]
            assert set(wanted) <= cases
            decoded = "compressed-tensors and transformers"
        elif name in FLOAT_TYPES:
            where = "GGUF, folders"
        elif name in ("Q4_0", "Q8_0"):
            where = f"GGUF; {'AWQ, ' if name == 'Q4_0' else ''}GPTQ, compressed-tensors where it holds them"
        floats = name in FLOAT_TYPES or name.startswith("F8")
        activations = "floats" if floats else "8 bits"
        rows.append(
            f"| {name} | {where} | {size * 8 / values:.4g} | {held:.4g} | {activations} | {decoded} |"
        )
    return rows


def _tool_rows() -> list[str]:
    rows = []
    for form in ANYWHERE:
        names = [name for name, family in TOOL_PARSERS.items() if family == form]
        marks = [opening.mark for opening in (*ANYWHERE[form], *AT_START[form]) if opening.mark]
        bare = any(not opening.mark for opening in AT_START[form])
        shown = [*map(_code, marks), *(["nothing, at the start of the answer"] if bare else [])]
        rows.append(f"| {form} | {', '.join(map(_code, names))} | {', '.join(shown)} |")
    return rows


def _reasoning_rows() -> list[str]:
    rows = []
    for form in FORMATS:
        names = [name for name, made in PARSERS.items() if made is form]
        cells = (form.name, *(", ".join(map(_code, each)) for each in (names, form.opens, form.closes)))
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _code(text: str) -> str:
    """As code in a cell of a table, where | has to be escaped."""
    fence = "```` " if "`" in text else "`"
    return f"{fence}{text}{fence[::-1]}".replace("|", "\\|")


def _table(head: str, rows: list[str]) -> str:
    return "\n".join([head, "|---" * (head.count("|") - 1) + "|", *rows, ""])


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text("utf-8")), "utf-8")
