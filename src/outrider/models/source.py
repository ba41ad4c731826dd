"""The format-independent description of a model, which engines and tokenizers are built from.

Tensor names are GGUF's (`token_embd.weight`, `blk.3.attn_q.weight`, …), whatever the file's format.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.models.spec import ModelSpec

logger = logging.getLogger("outrider")

# (first row, last row) -> uint8[bytes of these rows]
Recode: TypeAlias = Callable[[int, int], npt.NDArray[np.uint8]]


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """One weight matrix or vector, in its file's encoding.

    data:  uint8[nbytes], a read-only view into the memory-mapped file, checked to lie inside it. It is
           aligned only as the file aligns it, so copy it before viewing it as a wider type.
    type:  name of the ggml type, one of weight_types.SUPPORTED_TYPES in a model that can be loaded, or of a
           type in FOLDER_TYPES.
    shape: (rows, columns) with rows contiguous, or (length,) for a vector.
    recode: None where `data` are the type's blocks. Else the file has a layout of its own, and this computes
           the blocks of some rows, without changing a value. It may raise ModelFileError.
    column_order: None, or int32[columns]: column i of the blocks is column column_order[i] of the matrix.
    beside: bytes of what belongs to it elsewhere in the file: scales, zero points, the order of columns.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]
    recode: Recode | None = None
    column_order: npt.NDArray[np.int32] | None = None
    beside: int = 0

    def encoded(self) -> npt.NDArray[np.uint8]:
        """The blocks of all rows: `data`, or a new array."""
        return self.data if self.recode is None else self.recode(0, self.shape[0])

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all of it in the file."""
        return self.nbytes + self.beside


@dataclass(frozen=True, slots=True)
class AddedPiece:
    """A token that is added to a tokenizer.json, with the flags of the `tokenizers` package.

    id:             what the package gives it: that of the same piece in the vocabulary, or else the next one.
    special:        hidden in decoded texts, and plain text where special tokens are not parsed.
    lstrip, rstrip: also takes the white space before it, or after it.
    single_word:    found only where no letter or digit touches it.
    normalized:     found in the normalized text; else in the text as it is.
    """

    content: str
    id: int
    special: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class TokenizerData:
    """The data of a tokenizer, as GGUF stores it or as a Hugging Face tokenizer.json.

    kind: "bpe" (GGUF `gpt2`: byte-level BPE), "spm" (GGUF `llama`: SentencePiece-style), or
          "json" (tokenizer_json holds the file's text; tokens, types, merges and scores are empty, and
          add_bos and add_eos are False because the post-processor in the file adds them itself).
    pre:  GGUF's `tokenizer.ggml.pre` (llama-bpe, qwen2, smollm, gpt-2, default, …).
    tokens: the pieces; a byte that is not UTF-8 is written `\\xNN` (the format wants UTF-8).
    types: int32[n] of GGUF token types (1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte).
    eos_ids: every id that ends a turn (eos, eot, <|im_end|>, generation_config's list); of a GGUF file also
          those that mark padding, a repository and a file where gaps are filled in, as in llama.cpp.
    eos_id: the tokenizer's own eos, which add_eos adds; None: the first of eos_ids.
    named: what chat templates know as bos_token, eos_token and so on; None: the pieces of the ids above.
    added: what is added to a tokenizer.json, in this order; a later entry replaces an earlier one.
    fim:   ids that the file gives the tokens for filling in, by role (`models/text/fim.py`).
    prepend_scheme: where a tokenizer.json puts a blank in front, instead of what it says itself: of each part
          between special tokens, of the text, or nowhere.
    """

    kind: Literal["bpe", "spm", "json"]
    pre: str = ""
    tokens: tuple[str, ...] = ()
    types: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    merges: tuple[str, ...] = ()
    scores: npt.NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    tokenizer_json: str = ""
    bos_id: int | None = None
    eos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    unk_id: int | None = None
    pad_id: int | None = None
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = True
    named: Mapping[str, str] | None = None
    added: tuple[AddedPiece, ...] = ()
    fim: Mapping[str, int] = field(default_factory=dict)
    prepend_scheme: Literal["always", "first", "never"] | None = None

    @property
    def own_eos_id(self) -> int | None:
        """eos_id, or else the first of eos_ids."""
        return self.eos_id if self.eos_id is not None else next(iter(self.eos_ids), None)


@dataclass(frozen=True, slots=True, eq=False)
class ModelSource:
    """A model that was opened and checked; no weight has been copied or converted.

    architecture: the computation of a forward pass.
    tensors: exactly the tensors that the architecture needs, with checked shapes
             (`checks.expected_tensors`): token_embd.weight [vocab, hidden], output_norm.weight, and for
             each layer blk.N.{attn_norm, attn_q, …}.weight, some with a bias. Without output.weight
             [vocab, hidden] the output matrix is tied to token_embd.weight. Vectors are F32, F16 or BF16.
             rope_freqs.weight is left out, as the rotary frequencies of `architecture` include it.
    recommended_sampling: values that the files recommend, under SamplingParams' names; not checked.
    chat_template: the template of conversations, if there is one; chat_templates has further ones by name, of
             which "tool_use" is for conversations with tools.
    quantization: how an engine quantizes the matrices at load (models/quantization.py); None: as stored.
    stored_method: the `quant_method` of a quantized folder's config.json; None for all others.
    parts: the other files of a split GGUF model, of which `path` is the first.
    borrowed: names of tensors that are another model's, which are used as they are.
    transformers_class: the class of transformers that runs the model, where no family here does:
             `architecture` then has its sizes only, and there are no tensors.
    """

    path: Path
    format: Literal["gguf", "safetensors"]
    display_name: str
    architecture: ModelSpec
    tensors: Mapping[str, Tensor]
    tokenizer: TokenizerData
    chat_template: str | None
    quantization: str | None = None
    recommended_sampling: Mapping[str, object] = field(default_factory=dict)
    parts: tuple[Path, ...] = ()
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    transformers_class: str | None = None
    borrowed: frozenset[str] = frozenset()
    stored_method: str | None = None

    def fingerprint(self) -> list[str | int | None]:
        """Identifies these weights in caches: for each file its absolute path, its size in bytes and the time
        of its last change in nanoseconds; and the quantization. Raises OSError when a file is gone."""
        found: list[str | int | None] = []
        for path in (self.path.resolve(), *(part.resolve() for part in self.parts)):
            stat = path.stat()
            found += [str(path), stat.st_size, stat.st_mtime_ns]
        return [*found, self.quantization]

    def for_context(self, positions: int | None) -> ModelSource:
        """The same for contexts of at most `positions` tokens (`ModelSpec.for_context`); None: of as many as
        the usual rotary table is for, with a warning where there is one for more."""
        spec = self.architecture
        if positions is None and spec.long_rope is not None:
            logger.warning(
                "%s: the context is %d tokens; a longer --max-model-len (-c), up to %d, chooses the rotary"
                " factors for long contexts",
                self.path, spec.max_positions, spec.long_positions,
            )  # fmt: skip
        return replace(self, architecture=spec.for_context(positions or 0))

    @property
    def parameters(self) -> int:
        """How many weights there are, whatever they are stored in."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    @property
    def weights_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(t.stored_bytes for t in self.tensors.values())
