"""An EAGLE-3 head, whatever dialect its file is in, and the target that it fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from outrider.errors import ModelFileError, UnsupportedModelError
from outrider.models.checks import check_dimensions, check_tensors
from outrider.models.families import FAMILIES, LIMITS, Dimensions, make_spec
from outrider.models.quantization import EMBEDDING, OUTPUT
from outrider.models.source import ModelSource, Tensor, TokenizerData
from outrider.models.spec import HeadSpec, ModelSpec

IntArray: TypeAlias = npt.NDArray[np.int32]

NAME = "eagle3"  # of the computation, and of the architecture in GGUF files
MAX_STATES = 16  # hidden states that a head may read of a token
USUAL_STATES = 3
TRAINED_LENGTH = "trained_length"  # in files of `outrider train`: tokens of the longest text
USUAL_TRAINED_LENGTH = 2048  # of published heads: --max-length of EAGLE-3's own training
NO_TOKENIZER = TokenizerData("bpe")  # a head's ids are its target's


@dataclass(frozen=True, slots=True, eq=False)
class Eagle3Head:
    """One head. Its file's own, until `for_target` gives it what it has of its target.

    source:     its weights under GGUF's names, and what it computes (`architecture.head`). Without a
                token_embd.weight, or an output.weight, it uses the target's; `architecture.head.tokens` is 0
                where nothing says how many ids that has.
    layers:     of the target, whose inputs it reads, in the order in which they lie next to each other; the
                number of layers stands for the output of the last. None: those that EAGLE-3 reads of any
                target.
    target_ids: int32[vocab_size], the target's ids of its output's rows, each at most once; None where they
                are the same.
    made_for:   the name of its target, where the file says.
    tokenizer:  the target's, where the file has it.
    trained_length: tokens of the longest text that it was trained on, or a guess.
    """

    source: ModelSource
    layers: tuple[int, ...] | None
    target_ids: IntArray | None
    made_for: str = ""
    tokenizer: TokenizerData | None = None
    trained_length: int = USUAL_TRAINED_LENGTH

    @property
    def whole_prompt(self) -> int:
        """Tokens of the longest prompt within the positions that it was trained at, as far as is known. The
        file's positions are these in some heads, and the target's in others."""
        return min(self.trained_length, self.source.architecture.max_positions)

    @property
    def spec(self) -> HeadSpec:
        """What it reads and gives."""
        head = self.source.architecture.head
        assert head is not None
        return head

    @property
    def taps(self) -> tuple[int, ...]:
        """The target's layers, ascending, each once."""
        return tuple(sorted(set(self.layers or ())))

    @property
    def order(self) -> tuple[int, ...]:
        """For each state that it reads, which of `taps` it is."""
        return tuple(self.taps.index(layer) for layer in self.layers or ())

    def for_target(self, target: ModelSource) -> Eagle3Head:
        """The same with all that it takes from `target`. Raises UnsupportedModelError, naming all
        differences, for a head of another target."""
        path, spec, sizes = self.source.path, self.spec, target.architecture
        layers = usual_layers(sizes.n_layers) if self.layers is None else self.layers
        differences = []
        if spec.state_size != sizes.hidden_size:
            differences.append(
                f"hidden states of {spec.state_size} columns, the target's {sizes.hidden_size}"
            )
        if spec.tokens not in (0, sizes.vocab_size):
            differences.append(f"vocabulary of {spec.tokens} ids, the target's {sizes.vocab_size}")
        elif self.target_ids is not None and int(self.target_ids.max()) >= sizes.vocab_size:
            differences.append(f"id {self.target_ids.max()}, the target's end at {sizes.vocab_size - 1}")
        if self.target_ids is None and self.source.architecture.vocab_size != sizes.vocab_size:
            rows = self.source.architecture.vocab_size
            differences.append(f"output of {rows} rows without d2t, the target's {sizes.vocab_size} ids")
        if not 0 <= min(layers) <= max(layers) <= sizes.n_layers:
            differences.append(f"states of layers {list(layers)}, the target has {sizes.n_layers} layers")
        shared = [name for name in (EMBEDDING, OUTPUT) if name not in self.source.tensors]
        if shared and self.source.architecture.hidden_size != sizes.hidden_size:
            differences.append(f"embeddings of {self.source.architecture.hidden_size} columns, "
                               f"the target's {sizes.hidden_size}")  # fmt: skip
        if differences:
            made_for = f" ({self.made_for})" if self.made_for else ""
            raise UnsupportedModelError(
                f"{path}: is an EAGLE-3 head for another target{made_for}: its {'; its '.join(differences)}"
            )
        tensors = {**self.source.tensors, **_shared(target, shared)}
        architecture = replace(self.source.architecture, head=replace(spec, tokens=sizes.vocab_size))
        check_tensors(path, architecture, tensors)
        source = replace(self.source, architecture=architecture, tensors=tensors, borrowed=frozenset(shared))
        return replace(self, source=source, layers=layers)


def usual_layers(n_layers: int) -> tuple[int, ...]:
    """The layers whose inputs EAGLE-3 heads read of a target with so many: low, middle, high."""
    return 2, n_layers // 2, n_layers - 3


def _shared(target: ModelSource, names: list[str]) -> dict[str, Tensor]:
    """The target's tensors of these names; its output matrix may be its embedding."""
    found = {name: target.tensors.get(name, target.tensors[EMBEDDING]) for name in names}
    return {name: replace(tensor, name=name) for name, tensor in found.items()}


def head_spec(path: Path, family: str, dimensions: Dimensions, head: HeadSpec) -> ModelSpec:
    """What a head computes, with the layers of a family. Raises ModelFileError for impossible numbers."""
    check_dimensions(path, dimensions)
    for name, value, most in (
        ("hidden states", head.states, MAX_STATES),
        ("columns of a hidden state", head.state_size, LIMITS["hidden_size"]),
    ):
        if not 1 <= value <= most:
            raise ModelFileError(f"{path}: the number of {name} is {value}, not between 1 and {most}")
    return replace(make_spec(FAMILIES[family], dimensions), name=NAME, head=head)


def check_target_ids(
    path: Path, ids: npt.NDArray[np.int64] | None, spec: ModelSpec, mask: npt.NDArray[np.bool_] | None = None
) -> IntArray | None:
    """The target's ids of a head's output rows, checked; None where they are the same ids.

    mask: bool[target's vocabulary], which ids the head has, where the file says so as well (t2d).
    Raises ModelFileError.
    """
    assert spec.head is not None
    tokens = spec.head.tokens or LIMITS["vocab_size"]
    if ids is None:
        if spec.head.tokens and spec.vocab_size != spec.head.tokens:
            raise ModelFileError(
                f"{path}: the tensor d2t is missing, and the output has {spec.vocab_size} rows for a "
                f"vocabulary of {spec.head.tokens}"
            )
        return None
    if ids.shape != (spec.vocab_size,):
        raise ModelFileError(f"{path}: d2t has {len(ids)} entries for {spec.vocab_size} rows of the output")
    if ids.min() < 0 or ids.max() >= tokens:
        raise ModelFileError(f"{path}: d2t names ids from {ids.min()} to {ids.max()} of {tokens}")
    if len(np.unique(ids)) < len(ids):
        raise ModelFileError(f"{path}: d2t names an id twice")
    if mask is not None and (len(mask) != tokens or not np.array_equal(np.flatnonzero(mask), np.sort(ids))):
        raise ModelFileError(f"{path}: t2d and d2t do not name the same ids")
    if len(ids) == spec.head.tokens and np.array_equal(ids, np.arange(len(ids))):
        return None
    return ids.astype(np.int32)


def check_layers(path: Path, given: object, states: int | None = None) -> tuple[int, ...]:
    """The target's layers that a file names. Raises ModelFileError unless they are as many as `states`."""
    values: list[Any] = given.tolist() if isinstance(given, np.ndarray) else given  # type: ignore[assignment]
    valid = (
        isinstance(values, list)
        and 1 <= len(values) <= MAX_STATES
        and all(type(n) is int and 0 <= n <= LIMITS["n_layers"] for n in values)
    )
    if not valid or (states is not None and len(values) != states):
        raise ModelFileError(f"{path}: the target's layers are not a list of up to {MAX_STATES} layers")
    return tuple(values)


def without_maps(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights among a head's tensors."""
    return {name: tensor for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
