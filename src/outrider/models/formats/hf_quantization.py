"""quantization_config in config.json: how a Hugging Face folder's matrices are quantized.

Read are AWQ (AutoAWQ's gemm layout), GPTQ (AutoGPTQ's and GPTQModel's), compressed-tensors (pack-quantized
and float-quantized) and transformers' and vLLM's fp8. Every other method, and every option that would change
a value and is not known here, is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outrider.errors import ModelFileError, UnsupportedModelError
from outrider.models.families import shown
from outrider.models.formats.hf_json import Section

GROUP_LIMIT = 1 << 20  # columns that share a scale
CONFIG_GROUPS_LIMIT = 64
_FORMATS = ("pack-quantized", "float-quantized", "naive-quantized", "mixed-precision", "dense")
_USE_GGUF = "use the model's GGUF file"


@dataclass(frozen=True, slots=True)
class WeightScheme:
    """What the matrices of one kind have in common.

    kind:      "int": scale * (q - zero), with integers of `bits` bits; "float": scale * v, E4M3 of 8 bits.
    symmetric: zero is half of the integers' range, and no tensor has it.
    group:     columns that share a scale; None: all of a row.
    rows:      rows that share a scale: 1, so many, or None for all.
    """

    kind: Literal["int", "float"]
    bits: int
    symmetric: bool
    group: int | None
    rows: int | None = 1

    def groups(self, rows: int, columns: int) -> tuple[int, int]:
        """How many scales a matrix has, down its rows and along its columns."""
        return -(-rows // (self.rows or rows)), -(-columns // (self.group or columns))


@dataclass(frozen=True, slots=True)
class Quantization:
    """method: the layout of the tensors. schemes: what matrices may have; the tensors say which of these.
    zero_offset: what the stored zero points are less than those that are meant."""

    method: Literal["awq", "gptq", "compressed-tensors", "fp8"]
    schemes: tuple[WeightScheme, ...]
    zero_offset: int = 0


def read_quantization(config: Section) -> Quantization | None:
    """How the folder of this config.json is quantized; None if it is not.

    Raises UnsupportedModelError for a method or an option that is not supported, and ModelFileError for
    settings that have the wrong type.
    """
    if config.values.get("quantization") is not None:  # MLX's
        raise _refused(config, "quantization")
    settings = config.values.get("quantization_config")
    if settings is None:
        return None
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    read = _METHODS.get(method) if isinstance(method, str) else None
    section = config.section("quantization_config") if read else None
    if read is None or section is None:
        raise _refused(config, "quantization_config")
    return read(section)


def _refused(config: Section, key: str) -> UnsupportedModelError:
    settings = config.values[key]
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    by = ""
    if isinstance(method, str) and method:
        by = f" with {shown(method.upper())[1:-1]}"
    elif isinstance(settings, dict) and settings.keys() >= {"group_size", "bits"}:
        by = " by MLX"
    return UnsupportedModelError(
        f"{config.path}: is quantized{by} ({key}); of quantized folders, those of AWQ, GPTQ,"
        f" compressed-tensors and fp8 are read ({_USE_GGUF} for others)"
    )


def _unsupported(section: Section, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{section.path}: quantization_config has {what}, which is not supported ({_USE_GGUF})"
    )


def _group(section: Section, key: str = "group_size") -> int | None:
    """Columns that share a scale; None (-1 in the file) for all of a row."""
    size = section.integer(key, -1, GROUP_LIMIT)
    if size == -1:
        return None
    if size == 0 or size % 32:
        raise _unsupported(section, f"groups of {size} columns, not a multiple of 32")
    return size


def _one_of(section: Section, key: str, default: str, known: tuple[str, ...]) -> str:
    value = section.text(key, default).lower()
    if value not in known:
        raise _unsupported(section, f"the {key} {shown(value)}")
    return value


def _bits(section: Section, key: str, known: tuple[int, ...]) -> int:
    bits = section.integer(key, 1, 64)
    if bits not in known:
        raise _unsupported(section, f"{bits} bits")
    return bits


def _awq(section: Section) -> Quantization:
    _one_of(section, "version", "gemm", ("gemm",))
    _one_of(section, "checkpoint_format", "gemm", ("gemm",))
    _one_of(section, "backend", "autoawq", ("autoawq", "auto"))
    bits = _bits(section, "bits" if "bits" in section.values else "w_bit", (4,))
    group = _group(section, "group_size" if "group_size" in section.values else "q_group_size")
    return Quantization("awq", (WeightScheme("int", bits, symmetric=False, group=group),))


def _gptq(section: Section) -> Quantization:
    key = "checkpoint_format" if section.values.get("checkpoint_format") is not None else "format"
    version = _one_of(section, key, "gptq", ("gptq", "gptq_v2"))
    _one_of(section, "pack_dtype", "int32", ("int32",))
    if section.flag("is_marlin_format", False):
        raise _unsupported(section, "is_marlin_format")
    overrides = section.section("dynamic")
    if overrides and any(not pattern.startswith("-:") for pattern in overrides.values):
        raise _unsupported(section, "settings of single modules (dynamic)")
    scheme = WeightScheme("int", _bits(section, "bits", (4, 8)), symmetric=False, group=_group(section))
    # The first version stores every zero point less one.
    return Quantization("gptq", (scheme,), zero_offset=1 if version == "gptq" else 0)


def _fp8(section: Section) -> Quantization:
    _one_of(section, "fmt", "e4m3", ("e4m3", "float8_e4m3fn"))
    _one_of(section, "activation_scheme", "dynamic", ("dynamic", "static"))
    block = section.values.get("weight_block_size")
    per_row = WeightScheme("float", 8, symmetric=True, group=None)
    per_tensor = WeightScheme("float", 8, symmetric=True, group=None, rows=None)
    return Quantization("fp8", (per_tensor, per_row) if block is None else (_block_scheme(section, block),))


def _block_scheme(section: Section, block: object) -> WeightScheme:
    if not (isinstance(block, list) and len(block) == 2 and all(type(n) is int for n in block)):
        raise ModelFileError(f"{section.path}: the size of quantization_config's blocks is not two integers")
    rows, columns = block
    if not 1 <= rows <= GROUP_LIMIT or not 1 <= columns <= GROUP_LIMIT or columns % 32:
        raise _unsupported(section, "blocks whose columns are not a multiple of 32")
    return WeightScheme("float", 8, symmetric=True, group=columns, rows=rows)


def _compressed(section: Section) -> Quantization:
    formats = [section]
    for key in ("sparsity_config", "transform_config"):
        options = section.section(key)
        if options and options.values and options.values.get("format") != "dense":
            raise _unsupported(section, key)
    groups = section.section("config_groups")
    if groups is None or not groups.values:
        raise ModelFileError(f"{section.path}: quantization_config has no config_groups")
    if len(groups.values) > CONFIG_GROUPS_LIMIT:
        raise _unsupported(section, f"{len(groups.values)} config_groups")
    schemes: list[WeightScheme] = []
    for name in groups.values:
        group = groups.section(name)
        weights = group.section("weights") if group else None
        if group is None or weights is None:
            raise _unsupported(section, f"a config group without weights ({shown(name)})")
        formats.append(group)
        schemes.append(_weight_scheme(section, group, weights))
    for each in formats:
        _one_of(each, "format", "dense", _FORMATS)
    return Quantization("compressed-tensors", tuple(schemes))


def _weight_scheme(section: Section, group: Section, weights: Section) -> WeightScheme:
    kind = _one_of(weights, "type", "int", ("int", "float"))
    strategy = weights.text("strategy", "")
    if not strategy:  # as compressed-tensors concludes it
        size = weights.integer("group_size", -1, GROUP_LIMIT, 0)
        strategy = "channel" if size < 0 else "group" if size else "tensor"
    if weights.flag("dynamic", False):
        raise _unsupported(section, "weights that are quantized anew in every pass (dynamic)")
    symmetric = weights.flag("symmetric", True)
    if kind == "float":
        _bits(weights, "num_bits", (8,))
        _one_of(weights, "strategy", strategy, ("tensor", "channel", "block"))
        if not symmetric:
            raise _unsupported(section, "floats with zero points")
        if strategy == "block":
            return _block_scheme(section, weights.values.get("block_structure"))
        return WeightScheme("float", 8, symmetric=True, group=None, rows=None if strategy == "tensor" else 1)
    bits = _bits(weights, "num_bits", (4, 8))
    if group.section("input_activations") is not None:
        raise _unsupported(section, f"activations quantized beside integer weights (w{bits}a8 and the like)")
    _one_of(weights, "strategy", strategy, ("tensor", "channel", "group"))
    columns = _group(weights) if strategy == "group" else None
    return WeightScheme("int", bits, symmetric, columns, rows=None if strategy == "tensor" else 1)


_METHODS = {"awq": _awq, "gptq": _gptq, "compressed-tensors": _compressed, "fp8": _fp8}
