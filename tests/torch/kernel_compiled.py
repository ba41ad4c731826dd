"""Compiles kernels for a Hopper GPU, without one, and prints as JSON which instructions they have.

A program of its own, because in a process that interprets kernels none is compiled.
"""

from __future__ import annotations

import json
import re
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from outrider.engines.torch.kernels import attention, linear, sampling

FUSED_DOUBLE, PRODUCT = r"fma\.rn\.f64", r"(?:wgmma\.mma_async|mma\.sync)[\w.]*"


def instructions(
    kernel: Any, pattern: str, types: dict[str, str], constants: dict[str, Any], **options: Any
) -> tuple[list[str], int]:
    """The different instructions of a kernel that match, and how many there are. types: of arguments, "i32"
    for those that are not named."""
    names = kernel.arg_names
    signature = {a: "constexpr" if a in constants else types.get(a, "i32") for a in names}
    aligned = [i for i, a in enumerate(names) if a in types or a.endswith("stride")]
    source = ASTSource(
        kernel,
        signature=signature,
        constexprs=constants,
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned if signature[names[i]] != "fp32"},
    )
    options["enable_fp_fusion"] = False
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    found = re.findall(pattern, compiled.asm["ptx"])
    return sorted(set(found)), len(found)


def products(shape: dict[str, int]) -> list[str]:
    """The tensor core instructions of the matrix product with a tile."""
    types = dict.fromkeys(("x_ptr", "w_ptr", "bias_ptr", "out_ptr"), "*bf16")
    constants: dict[str, Any] = {"has_bias": False, "even": True, "widen": False}
    constants |= {name: shape[name] for name in ("block_n", "block_m", "block_k")}
    options = {name: shape[name] for name in ("num_warps", "num_stages")}
    return instructions(linear._linear, PRODUCT, types, constants, **options)[0]


def attention_products(rows: int, merged: bool) -> list[str]:
    """Those of attention in tiles of so many rows."""
    types = dict.fromkeys(("q_ptr", "k_ptr", "v_ptr"), "*bf16") | {"out_ptr": "*bf16" if merged else "*fp32"}
    types |= dict.fromkeys(("highest_ptr", "total_ptr"), "*fp32") | dict.fromkeys(
        ("scale", "softcap"), "fp32"
    )
    types |= {f"{name}_ptr": "*i32" for name in ("start", "committed", "position", "path")}
    constants: dict[str, Any] = {
        "d": 64,
        "block_d": 64,
        "tokens": rows // 4,
        "group_size": 4,
        "head_tiles": 1,
    }
    constants |= {"has_path": False, "has_window": False, "capped": False, "merged": merged, "widen": False}
    return instructions(attention._attention, PRODUCT, types, constants, num_warps=4, num_stages=2)[0]


def main() -> None:
    doubles = ("temperature_ptr", "limit_ptr", "bound_ptr", "top_ptr", "second_ptr")
    types = dict.fromkeys(doubles, "*fp64") | dict.fromkeys(("logits_ptr", "maxima_ptr"), "*fp32")
    types |= dict.fromkeys(("seed_ptr", "position_ptr"), "*i64")
    types |= dict.fromkeys(("bound_id_ptr", "done_ptr", "winner_ptr"), "*i32")
    constants = {"first_round": False, "has_top": True, "block": 128}
    tiles = [linear.tile(n, m, 2) for n, m in ((1, 2048), (1, 4096), (1, 28672), (20, 4096), (512, 4096))]
    found = {
        "linear": [products(tile) for tile in tiles],
        "linear of 64 rows and four warps": products(tiles[-1] | {"num_warps": 4}),
        "attention": [attention_products(rows, merged) for rows, merged in ((16, False), (32, True))],
        "fused in the noise": instructions(sampling._winners, FUSED_DOUBLE, types, constants, num_warps=4)[1],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
