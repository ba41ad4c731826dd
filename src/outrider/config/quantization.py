"""Names of the quantizations that a user may ask for, and the checks of them."""

from __future__ import annotations

from outrider.errors import ConfigError, nearest

QUANTIZATIONS = ("q8_0", "q4_k")  # of a float model's weights, when it is loaded
# Of a float target's matrices by the torch engine: the library that does it, and what it makes of them.
TORCH_QUANTIZATIONS = {"torchao": "8 bits", "bitsandbytes": "4 bits"}
LIGHT_QUANTIZATIONS = ("q3", "q4")  # of any draft model's weights, fewest bits first
DRAFT_QUANTIZATIONS = ("auto", *LIGHT_QUANTIZATIONS)  # of a draft model, the default first
# vLLM's names for folders that are stored so, and the `quant_method` in their config.json.
STORED_METHODS = {
    "awq": "awq",
    "awq_marlin": "awq",
    "gptq": "gptq",
    "gptq_marlin": "gptq",
    "compressed-tensors": "compressed-tensors",
    "fp8": "fp8",
}
KV_QUANTIZATIONS = ("q8_0",)  # of keys and values, in the native engine's caches
USUAL_KV = ("auto", "f16", "fp16", "float16")  # no quantization of theirs: how they are held anyway


def check_quantization(name: object, *, draft: bool = False) -> None:
    """Raise ConfigError unless it is one of QUANTIZATIONS, or of TORCH_QUANTIZATIONS for a target and of
    DRAFT_QUANTIZATIONS for a draft model, or a way in which a folder may be stored."""
    known = (*QUANTIZATIONS, *STORED_METHODS, *(DRAFT_QUANTIZATIONS if draft else TORCH_QUANTIZATIONS))
    if not isinstance(name, str) or name not in known:
        hint = nearest(str(name), known)
        also = (
            f", {' and '.join(DRAFT_QUANTIZATIONS)} any draft; 'stored' leaves it as it is"
            if draft
            else f", and {' and '.join(TORCH_QUANTIZATIONS)} on the torch engine"
        )
        raise ConfigError(
            f"quantization={name!r} is refused{hint}: {' and '.join(QUANTIZATIONS)} quantize a float model "
            f"when it is loaded{also}; for any other type choose a file that is stored so"
        )


def kv_quantization(name: object) -> str | None:
    """How keys and values are held: one of KV_QUANTIZATIONS, or None for binary16, whose names are in
    USUAL_KV. Raises ConfigError for others."""
    if name is None or (isinstance(name, str) and name.lower() in USUAL_KV):
        return None
    if not isinstance(name, str) or name.lower() not in KV_QUANTIZATIONS:
        raise ConfigError(
            f"kv_quantization={name!r} is refused{nearest(str(name), KV_QUANTIZATIONS)}: keys and values are "
            "held in binary16 (f16, the default) or in 8 bits (q8_0)"
        )
    return name.lower()
