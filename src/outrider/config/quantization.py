"""Names of the quantizations that a user may ask for, and the check of one."""

from __future__ import annotations

from outrider.errors import ConfigError, nearest

QUANTIZATIONS = ("q8_0", "q4_k")  # of a float model's weights, when it is loaded
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


def check_quantization(name: object, *, draft: bool = False) -> None:
    """Raise ConfigError unless it is one of QUANTIZATIONS or, for a draft model, of DRAFT_QUANTIZATIONS, or a
    way in which a folder may be stored."""
    known = (*QUANTIZATIONS, *STORED_METHODS, *(DRAFT_QUANTIZATIONS if draft else ()))
    if not isinstance(name, str) or name not in known:
        hint = nearest(str(name), known)
        also = (
            f", {' and '.join(DRAFT_QUANTIZATIONS)} any draft; 'stored' leaves it as it is" if draft else ""
        )
        raise ConfigError(
            f"quantization={name!r} is refused{hint}: {' and '.join(QUANTIZATIONS)} quantize a float model "
            f"when it is loaded{also}; for any other type choose a file that is stored so"
        )
