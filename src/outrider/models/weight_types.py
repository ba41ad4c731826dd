"""The types of weights that the native engine computes with: how large a block of each is in a file.

The C++ table (csrc/kernels/types.h) has the same facts; this one lets models be read and checked without the
compiled engine. tests/native/test_weight_types.py compares the two.
"""

from __future__ import annotations

# Values and bytes of one block. All but Q3_0 and FOLDER_TYPES are ggml's types.
BLOCKS = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q8_0": (32, 34),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "Q3_0": (32, 14),
    "IQ4_NL": (32, 18),
    "IQ4_XS": (256, 136),
    "MXFP4": (32, 17),
    "Q3_K": (256, 110),
    "Q2_K": (256, 84),
    "TQ1_0": (256, 54),
    "TQ2_0": (256, 66),
    "IQ3_XXS": (256, 98),
    "IQ3_S": (256, 110),
    "W4_32": (32, 21),
    "W4_128": (128, 69),
    "W8_32": (32, 37),
    "W8_128": (128, 133),
    "F8_32": (32, 36),
    "F8_128": (128, 132),
    "IQ2_XXS": (256, 66),
    "IQ2_XS": (256, 74),
    "IQ2_S": (256, 82),
}
# Bytes as the engine packs a type / bytes in the file, of types that differ. IQ3's grid entries and signs
# become integers of 4 bits, IQ2's of 3 bits, TQ1_0's digits 2 bits each; packed scales of 6 bits become bytes.
PACKED_GROWTH = {
    **{"Q4_K": 148 / 144, "Q5_K": 180 / 176, "Q3_K": 114 / 110, "IQ4_XS": 138 / 136},
    **{"IQ3_XXS": 2208 / 1568, "IQ3_S": 2208 / 1760, "TQ1_0": 1056 / 864},
    **{"IQ2_XXS": 1696 / 1056, "IQ2_XS": 1824 / 1184, "IQ2_S": 1824 / 1312},
}
LOADED_ONLY = frozenset({"Q3_0"})  # types that no file has: made when a model is quantized at load
# What matrices of quantized Hugging Face folders become where no type of ggml holds their values exactly
# (formats/hf_blocks.py): W integers of so many bits with a scale and a zero point, F8 floats with a scale.
# The columns of a block share its scale.
FOLDER_TYPES = ("W4_32", "W4_128", "W8_32", "W8_128", "F8_32", "F8_128")
SUPPORTED_TYPES = tuple(  # of matrices in GGUF files
    name for name in BLOCKS if name not in LOADED_ONLY and name not in FOLDER_TYPES
)
FLOAT_TYPES = ("F32", "F16", "BF16")
