"""Record how compressed-tensors and transformers read quantized matrices.

    python tests/scripts/record_quantized_reference.py tests/data/reference/quantized.npz

Needs torch, transformers, compressed-tensors and safetensors, which the test suite does not. For each case
the file holds a safetensors file with the tensors of one matrix, `m`, the folder's quantization_config, and
the matrix in float32 as these packages decode it. AWQ's integers are read by compressed-tensors' converter.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
from compressed_tensors.quantization import QuantizationScheme
from safetensors.torch import save
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

ROWS, COLUMNS = 32, 256
CASES: dict[str, dict[str, Any]] = {
    "w4 group": {"num_bits": 4, "strategy": "group", "group_size": 64},
    "w4 zeros": {"num_bits": 4, "strategy": "group", "group_size": 128, "symmetric": False},
    "w8 channel": {"num_bits": 8, "strategy": "channel"},
    "w8 zeros": {"num_bits": 8, "strategy": "group", "group_size": 32, "symmetric": False},
    "fp8 channel": {"num_bits": 8, "type": "float", "strategy": "channel"},
    "fp8 tensor": {"num_bits": 8, "type": "float", "strategy": "tensor"},
}


def scales_and_zeros(
    weight: torch.Tensor, args: dict[str, Any], index: torch.Tensor
) -> dict[str, torch.Tensor]:
    """bfloat16 scales of groups of columns, and zero points where they are wanted."""
    groups = int(index.max()) + 1
    parts = [weight[:, index == g] for g in range(groups)]
    low = torch.stack([p.amin(1).clamp(max=0) for p in parts], 1)
    high = torch.stack([p.amax(1).clamp(min=0) for p in parts], 1)
    if args["strategy"] == "tensor":
        low, high = low.amin().reshape(1), high.amax().reshape(1)
    most = 448.0 if args.get("type") == "float" else 2.0 ** (args["num_bits"] - 1) - 0.5
    if args.get("symmetric", True):
        scale = torch.maximum(-low, high) / most
        return {"weight_scale": scale.bfloat16()}
    scale = ((high - low) / (2 * most)).bfloat16()
    zero = (-(2 ** (args["num_bits"] - 1)) - low / scale.float()).round()
    limit = 2 ** (args["num_bits"] - 1)
    return {"weight_scale": scale, "weight_zero_point": zero.clamp(-limit, limit - 1).to(torch.int8)}


def compressed(args: dict[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, Any], torch.Tensor]:
    is_float = args.get("type") == "float"
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    name = "float-quantized" if is_float else "pack-quantized"
    weight = torch.randn(ROWS, COLUMNS)
    index = torch.arange(COLUMNS) // args.get("group_size", COLUMNS)
    state = {"weight": weight, **scales_and_zeros(weight, args, index)}
    compressor = BaseCompressor.get_value_from_registry(name)
    stored = compressor.compress(dict(state), scheme)
    values = compressor.decompress(
        {k: v.float() if k == "weight_scale" else v for k, v in stored.items()}, scheme
    )["weight"]
    group = json.loads(scheme.model_dump_json())
    config = {"quant_method": "compressed-tensors", "format": name, "config_groups": {"group_0": group}}
    return stored, config, values.float()


def awq() -> tuple[dict[str, torch.Tensor], dict[str, Any], torch.Tensor]:
    config = {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True}
    words = torch.iinfo(torch.int32)
    stored = {
        "qweight": torch.randint(words.min, words.max, (COLUMNS, ROWS // 8), dtype=torch.int32),
        "qzeros": torch.randint(words.min, words.max, (COLUMNS // 64, ROWS // 8), dtype=torch.int32),
        "scales": torch.rand(COLUMNS // 64, ROWS).half(),
    }
    converter = AutoAWQConverter.from_autoawq_config(config)
    q, scale, zero = converter._convert_gemm_module(stored["qweight"], stored["scales"], stored["qzeros"])
    spread = [each.float().repeat_interleave(64, dim=1) for each in (scale, zero)]
    return stored, config, (q.float() - spread[1]) * spread[0]


def blocks() -> tuple[dict[str, torch.Tensor], dict[str, Any], torch.Tensor]:
    weight = (100 * torch.randn(ROWS, COLUMNS)).to(torch.float8_e4m3fn)
    scale = torch.rand(1, COLUMNS // 128)
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [ROWS, 128]}
    values = Fp8Dequantize(None)._dequantize_one(weight, scale, torch.float32)
    return {"weight": weight, "weight_scale_inv": scale}, config, values


def main() -> None:
    torch.manual_seed(0)
    made = {name: compressed(args) for name, args in CASES.items()} | {"awq": awq(), "fp8 blocks": blocks()}
    record: dict[str, np.ndarray] = {}
    for name, (stored, config, values) in made.items():
        file = save({f"m.{part}": tensor.contiguous() for part, tensor in stored.items()})
        record[f"{name}.file"] = np.frombuffer(file, np.uint8)
        record[f"{name}.config"] = np.frombuffer(json.dumps(config).encode(), np.uint8)
        record[f"{name}.values"] = values.numpy()
    np.savez_compressed(Path(sys.argv[1]), allow_pickle=False, **record)


if __name__ == "__main__":
    main()
