"""Tiny models in several GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

from outrider.models.formats.gguf_file import read_gguf
from tests.support.models import tiny_gguf


def split(
    folder: Path,
    stem: str = "m",
    count: int = 3,
    wrong: Mapping[str, Mapping[int, int | None]] | None = None,
    keys: Mapping[str, Any] | None = None,
    **model: Any,
) -> list[Path]:
    """A tiny model in `count` parts, as llama-gguf-split writes it.

    wrong: values of "count", "no" or "tensors" that some part has instead of the right ones; None: without
           the key.
    keys:  strings in the metadata of all parts but the first.
    model: arguments of `tiny_gguf`.
    """
    tensors = list(read_gguf(tiny_gguf(folder / "whole.gguf", **model)).tensors().values())
    (folder / "whole.gguf").unlink()
    paths = []
    for part in range(count):
        numbers: dict[str, int | None] = {"count": count, "no": part, "tensors": len(tensors)}
        numbers |= {key: values[part] for key, values in (wrong or {}).items() if part in values}
        marks = {
            "split.count": numbers["count"],
            "split.no": numbers["no"],
            "split.tensors.count": numbers["tensors"],
        }
        path = folder / f"{stem}-{part + 1:05}-of-{count:05}.gguf"
        mine = tensors[part::count]
        if part == 0:
            dropped: dict[str, Any] = {t.name: None for t in tensors if t not in mine}
            tiny_gguf(path, **{**model, "keys": {**model.get("keys", {}), **marks}, "tensors": dropped})
        else:
            writer = GGUFWriter(path, "llama")
            writer.kv_data[0].clear()
            for key, value in marks.items():
                if value is not None:
                    writer.add_uint16(key, value)
            for key, text in (keys or {}).items():
                writer.add_string(key, text)
            for tensor in mine:
                writer.add_tensor(tensor.name, np.frombuffer(tensor.data, "<f4").reshape(tensor.shape))
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
        paths.append(path)
    return paths
