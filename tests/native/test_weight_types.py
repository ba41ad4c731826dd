from __future__ import annotations

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from outrider.engines.native import _core
from outrider.models.weight_types import BLOCKS, LOADED_ONLY, SUPPORTED_TYPES


def test_python_and_cpp_know_the_same_types() -> None:
    assert _core.weight_types() == BLOCKS


def test_types_in_files_have_ggmls_sizes() -> None:
    for name in SUPPORTED_TYPES:
        assert BLOCKS[name] == GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    assert not LOADED_ONLY & GGMLQuantizationType.__members__.keys()
