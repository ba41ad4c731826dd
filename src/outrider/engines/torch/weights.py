"""From a `ModelSource` to tensors on a device, one matrix at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from outrider.device_memory import is_packed
from outrider.engines.torch.module import LayerWeights, Weights
from outrider.engines.torch.packed import PACKINGS, Matrix
from outrider.errors import UnsupportedModelError
from outrider.models.formats.mapped import release
from outrider.models.source import ModelSource, Tensor
from outrider.models.spec import ModelSpec

CACHE_LINE = 64  # bytes
ACTIVATIONS = ("silu", "gelu_tanh")
_STORED = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def unsupported(spec: ModelSpec) -> str | None:
    """What of `spec` these modules cannot compute, in words; None when they can."""
    for i, layer in enumerate(spec.layers):
        part = layer.feed_forward
        has = (
            "attention sinks"
            if layer.sinks
            else f"a mixture of {part.experts} experts"
            if part.experts
            else f"the activation {part.activation}"
            if part.activation not in ACTIVATIONS
            else None
        )
        if has is not None:
            return f"layer {i} has {has}, which the torch engine does not support yet"
    return None


def load_weights(
    source: ModelSource,
    device: torch.device,
    dtype: torch.dtype,
    progress: Callable[[int, int], None] | None = None,
) -> Weights:
    """The weights of `source` in `dtype` on `device`, the matrices of layers as `source.quantization` says.
    At most one fused matrix is held on the host at a time.

    progress: called with (bytes done, bytes in all), of the file.
    Raises UnsupportedModelError for a part that the modules cannot compute, and for values that are not
    finite in `dtype`.
    """
    if (missing := unsupported(source.architecture)) is not None:
        raise UnsupportedModelError(f"{source.path}: {missing}")
    read = Reader(source, device, dtype, progress)
    layers = [read.layer(i) for i in range(source.architecture.n_layers)]
    embedding = read.must("token_embd.weight")
    output = read.get("output.weight")
    norm = read.must("output_norm.weight")
    return Weights(embedding, norm, embedding if output is None else output, layers)


class Reader:
    """Reads tensors of `source` as `dtype` onto `device`. Arguments and errors as those of `load_weights`."""

    def __init__(
        self,
        source: ModelSource,
        device: torch.device,
        dtype: torch.dtype,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._source, self._device, self._dtype, self._progress = source, device, dtype, progress
        self._done = 0

    def get(self, *names: str) -> torch.Tensor | None:
        """The rows of these tensors, one after the other; None where none of them is there."""
        source = self._source
        found = [source.tensors.get(name) for name in names]
        if not any(found):
            return None
        parts = [
            torch.zeros(_rows(source, name), dtype=torch.float32) if tensor is None else _values(tensor)
            for name, tensor in zip(names, found, strict=True)
        ]
        whole = parts[0] if len(parts) == 1 else torch.cat([part.float() for part in parts])
        converted = whole.to(device=self._device, dtype=self._dtype)
        if self._device.type == "cpu":
            converted = _well_placed(converted)
        if not bool(torch.isfinite(converted).all()):
            raise UnsupportedModelError(
                f"{source.path}: {names[0]} has values that are not finite as {str(self._dtype)[6:]}; try "
                "another dtype"
            )
        for tensor in found:
            if tensor is not None:
                release(tensor.data)
                self._done += tensor.nbytes
        if self._progress:
            self._progress(min(self._done, source.weights_bytes), source.weights_bytes)
        return converted

    def must(self, *names: str) -> torch.Tensor:
        """The same of tensors that the reader of the file has checked to be there."""
        found = self.get(*names)
        assert found is not None
        return found

    def matrix(self, *names: str) -> Matrix:
        """The same of a layer's matrices, packed if the model is quantized."""
        found, name = self.must(*names), self._source.quantization
        if name is None or not all(is_packed(self._source.tensors[each], name) for each in names):
            return found
        return PACKINGS[name](found)

    def layer(self, number: int) -> LayerWeights:
        """All of a layer but what heads have beside."""
        at, norms = f"blk.{number}.", self._source.architecture.layers[number].norms
        qkv = [f"{at}attn_{name}" for name in "qkv"]
        return LayerWeights(
            qkv=self.matrix(*[f"{name}.weight" for name in qkv]),
            qkv_bias=self.get(*[f"{name}.bias" for name in qkv]),
            output=self.matrix(f"{at}attn_output.weight"),
            output_bias=self.get(f"{at}attn_output.bias"),
            gate_up=self.matrix(f"{at}ffn_gate.weight", f"{at}ffn_up.weight"),
            down=self.matrix(f"{at}ffn_down.weight"),
            attn_norm=self.get(f"{at}attn_norm.weight") if norms.attention else None,
            q_norm=self.get(f"{at}attn_q_norm.weight") if norms.q else None,
            k_norm=self.get(f"{at}attn_k_norm.weight") if norms.k else None,
            post_attention_norm=(
                self.get(f"{at}post_attention_norm.weight") if norms.post_attention else None
            ),
            ffn_norm=self.get(f"{at}ffn_norm.weight") if norms.ffn else None,
            post_ffn_norm=self.get(f"{at}post_ffw_norm.weight") if norms.post_ffn else None,
        )


def random_weights(
    spec: ModelSpec, device: torch.device, dtype: torch.dtype, *, tied: bool, seed: int
) -> Weights:
    """Random weights of the shapes of `spec`, made on the device: for measurements and tests. Norms are ones,
    there are no biases, and matrices are scaled so that activations keep their size."""
    make = torch.Generator(device).manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        found = torch.empty(rows, columns, dtype=dtype, device=device)
        return found.normal_(0, columns**-0.5, generator=make)

    def ones(present: bool, size: int) -> torch.Tensor | None:
        return torch.ones(size, dtype=dtype, device=device) if present else None

    hidden, heads, kv_heads, head_dim = spec.hidden_size, spec.n_heads, spec.n_kv_heads, spec.head_dim
    layers = []
    for layer in spec.layers:
        norms, ffn = layer.norms, layer.feed_forward.size
        q_size, k_size = (heads * head_dim, kv_heads * head_dim) if norms.whole_qk else (head_dim, head_dim)
        layers.append(
            LayerWeights(
                qkv=matrix((heads + 2 * kv_heads) * head_dim, hidden),
                output=matrix(hidden, heads * head_dim),
                gate_up=matrix(2 * ffn, hidden),
                down=matrix(hidden, ffn),
                attn_norm=ones(norms.attention, hidden),
                q_norm=ones(norms.q, q_size),
                k_norm=ones(norms.k, k_size),
                post_attention_norm=ones(norms.post_attention, hidden),
                ffn_norm=ones(norms.ffn, hidden),
                post_ffn_norm=ones(norms.post_ffn, hidden),
            )
        )
    embedding = matrix(spec.vocab_size, hidden)
    output = embedding if tied else matrix(spec.vocab_size, hidden)
    return Weights(embedding, torch.ones(hidden, dtype=dtype, device=device), output, layers)


def _rows(source: ModelSource, bias: str) -> int:
    """Rows of the matrix that a missing bias would belong to."""
    return source.tensors[bias.removesuffix("bias") + "weight"].shape[0]


def _well_placed(values: torch.Tensor) -> torch.Tensor:
    """A copy that is read quickly: from the start of a cache line, in huge pages, which NumPy asks the system
    for and PyTorch does not. Products of one row of bfloat16 take 0.87 of the time that they take with memory
    of PyTorch, and 0.77 of that with memory of NumPy as it comes (Zen 5, one thread, 1536 x 8960)."""
    size = values.numel() * values.element_size()
    raw = np.empty(size + CACHE_LINE, np.uint8)
    first = -raw.ctypes.data % CACHE_LINE
    held = torch.from_numpy(raw[first : first + size]).view(values.dtype).view(values.shape)
    return held.copy_(values)


def _values(tensor: Tensor) -> torch.Tensor:
    """The values of `tensor` on the host: as stored where that is a float type, else as float32."""
    if tensor.type in _STORED and tensor.recode is None and tensor.column_order is None:
        data = torch.from_numpy(np.array(tensor.data, np.uint8, copy=True))
        return data.view(_STORED[tensor.type]).view(tensor.shape)
    from outrider.models.formats.dequantize import dequantize  # needs the gguf package

    return torch.from_numpy(dequantize(tensor))
