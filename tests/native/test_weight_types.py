from __future__ import annotations

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from outrider.engines.native import _core
from outrider.models.quantization import type_bytes
from outrider.models.weight_types import BLOCKS, FOLDER_TYPES, LOADED_ONLY, PACKED_GROWTH, SUPPORTED_TYPES


def test_python_and_cpp_know_the_same_types() -> None:
    assert _core.weight_types() == BLOCKS


def test_types_in_files_have_ggmls_sizes() -> None:
    for name in SUPPORTED_TYPES:
        assert BLOCKS[name] == GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    assert not {*LOADED_ONLY, *FOLDER_TYPES} & GGMLQuantizationType.__members__.keys()


def test_packed_sizes_are_as_memory_estimates_say() -> None:
    shape = (320, 512)
    for name in (*SUPPORTED_TYPES, *FOLDER_TYPES):
        packed = _core.packed_bytes(name, *shape)
        assert packed == round(type_bytes(name, shape) * PACKED_GROWTH.get(name, 1)), name
