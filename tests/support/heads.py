"""Tiny EAGLE-3 heads with random weights, in each dialect of files, and what they compute in plain float64.

The weights are under the names of the original checkpoints, with the rows of q and k in the order of
transformers. `ReferenceHead` reads these, never a file, so that readers and engine are compared with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from outrider.decoding.types import FloatArray
from outrider.engines.heads import HeadItem
from tests.support.models import VOCAB_SIZE, interleaved
from tests.support.toy_model import ToyModel

Floats: TypeAlias = npt.NDArray[np.float32]
Doubles: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class HeadDims:
    """Sizes and switches of a tiny head. rows: of its output; 0: the target's vocabulary, without d2t."""

    hidden: int = 64
    target_hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 96
    layers: int = 1
    vocab: int = VOCAB_SIZE
    rows: int = 96
    states: int = 3
    taps: tuple[int, ...] | None = None  # None: not said in the file
    embedding: bool = True
    qk_norms: bool = False
    joint_norm: bool = False
    state_norms: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    theta: float = 10000.0
    eps: float = 1e-5

    @property
    def head(self) -> int:
        return self.hidden // self.heads

    @property
    def width(self) -> int:
        return self.states * self.target_hidden


@dataclass(frozen=True)
class TinyHead:
    """weights: float32 by the original's names; ids: of the output's rows, int64[rows]."""

    dims: HeadDims
    weights: Mapping[str, Floats]
    ids: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))


def tiny_head(dims: HeadDims | None = None, seed: int = 0) -> TinyHead:
    """A head with random weights."""
    d = dims or HeadDims()
    rng = np.random.default_rng(seed + 77)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> Floats:
        return np.asarray(rng.standard_normal((rows, columns)) * scale / np.sqrt(columns), np.float32)

    def norm(columns: int = d.hidden) -> Floats:
        return np.asarray(1 + 0.2 * rng.standard_normal(columns), np.float32)

    q, kv = d.heads * d.head, d.kv_heads * d.head
    weights = {
        "fc.weight": matrix(d.hidden, d.width),
        "norm.weight": norm(),
        "lm_head.weight": matrix(d.rows or d.vocab, d.hidden, 4.0),
    }
    if d.embedding:
        weights["embed_tokens.weight"] = matrix(d.vocab, d.hidden, 4.0)
    if d.joint_norm:
        weights["input_norm.weight"] = norm(d.width)
    for i in range(d.states if d.state_norms else 0):
        weights[f"fc_norm.{i}.weight"] = norm(d.target_hidden)
    for layer in range(d.layers):
        at, columns = f"layers.{layer}.", d.hidden if layer else 2 * d.hidden
        weights[at + "input_layernorm.weight"] = norm()
        if layer == 0:
            weights[at + "hidden_norm.weight"] = norm()
        weights[at + "self_attn.q_proj.weight"] = matrix(q, columns)
        weights[at + "self_attn.k_proj.weight"] = matrix(kv, columns)
        weights[at + "self_attn.v_proj.weight"] = matrix(kv, columns)
        weights[at + "self_attn.o_proj.weight"] = matrix(d.hidden, q)
        if d.qk_norms:
            weights[at + "self_attn.q_norm.weight"] = norm(d.head)
            weights[at + "self_attn.k_norm.weight"] = norm(d.head)
        weights[at + "post_attention_layernorm.weight"] = norm()
        weights[at + "mlp.gate_proj.weight"] = matrix(d.ffn, d.hidden)
        weights[at + "mlp.up_proj.weight"] = matrix(d.ffn, d.hidden)
        weights[at + "mlp.down_proj.weight"] = matrix(d.hidden, d.ffn)
    ids = np.sort(rng.permutation(d.vocab)[: d.rows]) if d.rows else np.arange(d.vocab)
    return TinyHead(d, weights, ids.astype(np.int64))


def head_inputs(dims: HeadDims, count: int) -> tuple[list[int], Floats]:
    """`count` tokens, and hidden states with a few large columns, as those of real models have."""
    rng = np.random.default_rng(11)
    states = rng.standard_normal((count, dims.width)) * np.where(rng.random(dims.width) < 0.02, 40.0, 1.0)
    return rng.integers(0, dims.vocab, count).tolist(), states.astype(np.float32)


# The heads that tests/scripts/record_head_reference.py recorded.
RECORDED: Mapping[str, HeadDims] = {
    "plain": HeadDims(taps=(2, 3, 4)),
    "norm before residual": HeadDims(taps=(2, 3, 4), norm_before_residual=True, joint_norm=True),
    "three layers of qwen3": HeadDims(
        taps=(2, 3, 4), layers=3, qk_norms=True, norm_before_residual=True, state_norms=True, norm_output=True
    ),
}


# Of GGUF files, those that tests/scripts/record_llama_cpp_heads.py recorded.
RECORDED_GGUF: Mapping[str, HeadDims] = {
    "plain": HeadDims(taps=(1, 2, 3)),
    "all switches": HeadDims(taps=(1, 2, 3), norm_before_residual=True, joint_norm=True),
    "whole vocabulary": HeadDims(taps=(1, 2, 3), rows=0),
    "target's embedding": HeadDims(taps=(1, 2, 3), embedding=False),
}


# --- Files ----------------------------------------------------------------------------------------


def original_folder(
    folder: Path,
    head: TinyHead,
    *,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Any] | None = None,
) -> Path:
    """As the original repository saves heads. config, tensors: what overrides or (None) removes entries."""
    d = head.dims
    values = {**_layer_config(d), "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}
    if d.rows:
        values["draft_vocab_size"] = d.rows
    if d.target_hidden != d.hidden:
        values["target_hidden_size"] = d.target_hidden
    if d.taps is not None:
        values["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": list(d.taps)}
    return _folder(folder, head, {**values, **(config or {})}, tensors, first_layer="midlayer.")


def speculators_folder(
    folder: Path,
    head: TinyHead,
    *,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Any] | None = None,
) -> Path:
    """As the package speculators saves them."""
    d = head.dims
    values = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": "maker/Tiny", "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": {
            **_layer_config(d),
            "model_type": "qwen3" if d.qk_norms else "llama",
            "head_dim": d.head,
        },
        "draft_vocab_size": d.rows or d.vocab,
        "target_hidden_size": None if d.target_hidden == d.hidden else d.target_hidden,
        "norm_before_residual": d.norm_before_residual,
        "norm_before_fc": d.joint_norm,
        "fc_norm": d.state_norms,
        "norm_output": d.norm_output,
        "eagle_aux_hidden_state_layer_ids": None if d.taps is None else list(d.taps),
    }
    return _folder(folder, head, {**values, **(config or {})}, tensors, first_layer="layers.0.")


def gguf_head(
    path: Path, head: TinyHead, *, keys: Mapping[str, Any] | None = None, kind: str = "F32"
) -> Path:
    """As llama.cpp's converter writes them. keys: values that override or (None) remove metadata."""
    d = head.dims
    metadata: dict[str, Any] = {
        "general.name": "Tiny head",
        "eagle3.block_count": d.layers,
        "eagle3.context_length": 256,
        "eagle3.embedding_length": d.hidden,
        "eagle3.feed_forward_length": d.ffn,
        "eagle3.attention.head_count": d.heads,
        "eagle3.attention.head_count_kv": d.kv_heads,
        "eagle3.attention.layer_norm_rms_epsilon": d.eps,
        "eagle3.rope.freq_base": d.theta,
        "eagle3.target_layers": list(d.taps or (2, 3, 3)),
        "eagle3.target_hidden_size": d.target_hidden,
        "eagle3.norm_before_residual": d.norm_before_residual,
        "eagle3.norm_before_fc": d.joint_norm,
        **(keys or {}),
    }
    writer = GGUFWriter(path, "eagle3")
    for key, value in metadata.items():
        _add_key(writer, key, value)
    for name, values in head.weights.items():
        new, rows = _gguf_name(name), values
        heads = {"attn_q": d.heads, "attn_k": d.kv_heads}.get(new.split(".")[-2])
        rows = interleaved(values, heads) if heads is not None else values
        if rows.ndim == 2 and kind != "F32":
            raw = quantize(rows, GGMLQuantizationType[kind]).view(np.uint8)
            writer.add_tensor(new, raw.reshape(len(rows), -1), raw_dtype=GGMLQuantizationType[kind])
        else:
            writer.add_tensor(new, np.ascontiguousarray(rows))
    if d.rows:
        writer.add_tensor("d2t", head.ids)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _layer_config(d: HeadDims) -> dict[str, Any]:
    return {
        "hidden_size": d.hidden,
        "intermediate_size": d.ffn,
        "num_attention_heads": d.heads,
        "num_key_value_heads": d.kv_heads,
        "num_hidden_layers": d.layers,
        "rms_norm_eps": d.eps,
        "rope_theta": d.theta,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "vocab_size": d.vocab,
    }


def _folder(
    folder: Path,
    head: TinyHead,
    values: dict[str, Any],
    tensors: Mapping[str, Any] | None,
    first_layer: str,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    kept = {key: value for key, value in values.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))
    stored: dict[str, Any] = {
        name.replace("layers.0.", first_layer, 1): array for name, array in head.weights.items()
    }
    if head.dims.rows:
        mask = np.zeros(head.dims.vocab, bool)
        mask[head.ids] = True
        stored |= {"d2t": head.ids - np.arange(len(head.ids)), "t2d": mask}
    stored |= tensors or {}
    write_tensors(folder / "model.safetensors", {k: v for k, v in stored.items() if v is not None})
    return folder


def write_tensors(path: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
    """Arrays in the safetensors format, each of its own type."""
    names = {"float32": "F32", "int64": "I64", "int32": "I32", "bool": "BOOL"}
    header: dict[str, Any] = {}
    body = b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": names[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [len(body), len(body) + len(raw)],
        }
        body += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def _add_key(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)


def _gguf_name(name: str) -> str:
    top = {
        "norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
        "embed_tokens.weight": "token_embd.weight",
        "input_norm.weight": "enc.output_norm.weight",
    }
    parts = {
        "input_layernorm": "attn_norm",
        "hidden_norm": "attn_norm_2",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    if not name.startswith("layers."):
        return top.get(name, name)
    _, layer, part = name.removesuffix(".weight").split(".", 2)
    return f"blk.{layer}.{parts[part]}.weight"


# --- What they compute ----------------------------------------------------------------------------


class ReferenceHead:
    """A head in float64, one token at a time.

    weights:   of the original's names; those of `head` unless given (of quantized weights, their values).
    embedding: float[vocab, hidden], where the head uses its target's.
    """

    def __init__(
        self,
        head: TinyHead,
        *,
        weights: Mapping[str, npt.NDArray[Any]] | None = None,
        embedding: npt.NDArray[Any] | None = None,
    ) -> None:
        self.dims = head.dims
        self.weights = {k: np.asarray(v, np.float64) for k, v in (weights or head.weights).items()}
        if embedding is not None:
            self.weights["embed_tokens.weight"] = np.asarray(embedding, np.float64)

    def run(self, tokens: Sequence[int], states: npt.NDArray[Any]) -> tuple[Doubles, Doubles]:
        """(logits, states): float64[n, rows] and float64[n, hidden] after each of n tokens, which come with
        the target's hidden states, [m, width], and, from the m-th on, with what the head gave before."""
        keys: list[list[tuple[Doubles, Doubles]]] = [[] for _ in range(self.dims.layers)]
        logits: list[Doubles] = []
        given: list[Doubles] = []
        for i, token in enumerate(tokens):
            fed_back = i >= len(states)
            row, state = self.row(token, given[-1] if fed_back else states[i], keys, fed_back=fed_back)
            logits.append(row)
            given.append(state)
        return np.stack(logits), np.stack(given)

    def row(
        self,
        token: int,
        state: npt.NDArray[Any],
        keys: list[list[tuple[Doubles, Doubles]]],
        *,
        fed_back: bool,
    ) -> tuple[Doubles, Doubles]:
        """The same of one token, after those whose keys and values are in `keys`, which get its own."""
        x = state.astype(np.float64)
        return self._token(token, x if fed_back else self._reduced(x), keys)

    def _reduced(self, states: Doubles) -> Doubles:
        d, w = self.dims, self.weights
        if d.joint_norm:
            states = self._norm(states, "input_norm")
        if d.state_norms:
            parts = np.split(states, d.states)
            states = np.concatenate([self._norm(part, f"fc_norm.{i}") for i, part in enumerate(parts)])
        return np.asarray(w["fc.weight"] @ states)

    def _token(
        self, token: int, x: Doubles, keys: list[list[tuple[Doubles, Doubles]]]
    ) -> tuple[Doubles, Doubles]:
        d, w = self.dims, self.weights
        for i in range(d.layers):
            at = f"layers.{i}."
            if i == 0:
                embedded = self._norm(w["embed_tokens.weight"][token], at + "input_layernorm")
                normed = self._norm(x, at + "hidden_norm")
                residual = normed if d.norm_before_residual else x
                read = np.concatenate([embedded, normed])
            else:
                residual, read = x, self._norm(x, at + "input_layernorm")
            h = residual + self._attention(at, read, keys[i])
            normed = self._norm(h, at + "post_attention_layernorm")
            gate = w[at + "mlp.gate_proj.weight"] @ normed
            gate = gate / (1 + np.exp(-gate))
            x = h + w[at + "mlp.down_proj.weight"] @ (gate * (w[at + "mlp.up_proj.weight"] @ normed))
        last = self._norm(x, "norm")
        return np.asarray(w["lm_head.weight"] @ last), last if d.norm_output else np.asarray(x)

    def _attention(self, at: str, read: Doubles, keys: list[tuple[Doubles, Doubles]]) -> Doubles:
        d, w = self.dims, self.weights
        q, k, v = (
            (w[f"{at}self_attn.{part}_proj.weight"] @ read).reshape(-1, d.head) for part in ("q", "k", "v")
        )
        if d.qk_norms:
            q = np.stack([self._norm(head, at + "self_attn.q_norm") for head in q])
            k = np.stack([self._norm(head, at + "self_attn.k_norm") for head in k])
        position = len(keys)
        keys.append((self._rotate(k, position), v))
        q = self._rotate(q, position)
        found = []
        for head, query in enumerate(q):
            group = head // (d.heads // d.kv_heads)
            scores = np.stack([one[group] for one, _ in keys]) @ query / np.sqrt(d.head)
            shares = np.exp(scores - scores.max())
            found.append(shares @ np.stack([one[group] for _, one in keys]) / shares.sum())
        return np.asarray(w[at + "self_attn.o_proj.weight"] @ np.concatenate(found))

    def _rotate(self, heads: Doubles, position: int) -> Doubles:
        half = self.dims.head // 2
        angle = position * self.dims.theta ** (-np.arange(half) / half)
        x, y = heads[:, :half], heads[:, half:]
        cos, sin = np.cos(angle), np.sin(angle)
        return np.concatenate([x * cos - y * sin, x * sin + y * cos], axis=1)

    def _norm(self, x: Doubles, name: str) -> Doubles:
        root = np.sqrt(np.mean(x * x) + self.dims.eps)
        return np.asarray(x / root * self.weights[f"{name}.weight"])


def knowing_head(
    model: ToyModel, taps: tuple[int, ...], rows: int, *, sway: float = 0.5, seed: int = 0
) -> TinyHead:
    """A head that knows what usually follows a token in a toy model's texts, and is led astray by the hidden
    states now and then, the more the larger `sway`. Attention finds a token's own row, since embeddings are
    nearly orthogonal; so its embedding reaches the output, which was solved for the model's bigrams."""
    hidden = 16 * (-(-model.vocab_size // 16) + 1)
    dims = HeadDims(
        hidden=hidden, target_hidden=model.hidden_size, heads=1, kv_heads=1, ffn=16, vocab=model.vocab_size,
        rows=rows, states=len(taps), taps=taps,
    )  # fmt: skip
    made = tiny_head(dims, seed)
    one, nothing, ones = (np.eye(hidden), np.zeros((hidden, hidden)), np.ones(hidden))
    embeddings = np.random.default_rng(seed).standard_normal((dims.vocab, hidden))
    embeddings /= np.sqrt(np.mean(embeddings**2, axis=1, keepdims=True) + dims.eps)
    bigrams = np.stack([model.bigram(token) for token in range(dims.vocab)])
    output = np.linalg.lstsq(embeddings, bigrams, rcond=None)[0].T[made.ids]
    at = "layers.0.self_attn."
    weights = {
        "embed_tokens.weight": embeddings,
        "lm_head.weight": output,
        "norm.weight": ones,
        "layers.0.input_layernorm.weight": ones,
        "fc.weight": sway * made.weights["fc.weight"],
        **{f"{at}{part}_proj.weight": np.hstack([one, nothing]) for part in "qkv"},
        f"{at}o_proj.weight": one,
        "layers.0.mlp.down_proj.weight": 0.5 * sway * made.weights["layers.0.mlp.down_proj.weight"],
    }
    as_floats = {name: np.asarray(values, np.float32) for name, values in weights.items()}
    return TinyHead(dims, {**made.weights, **as_floats}, made.ids)


class NumpyCache:
    """Implements Cache for `NumpyHead`: keys and values of each layer."""

    def __init__(self, layers: int, capacity: int) -> None:
        self.keys: list[list[tuple[Doubles, Doubles]]] = [[] for _ in range(layers)]
        self.capacity = capacity
        self.closed = False

    @property
    def length(self) -> int:
        assert not self.closed
        return len(self.keys[0])

    def truncate(self, length: int) -> None:
        assert 0 <= length <= self.length
        for layer in self.keys:
            del layer[length:]

    def keep(self, base: int, slots: Sequence[int]) -> None:
        raise AssertionError("a head's rows are truncated only")

    def close(self) -> None:
        self.closed = True


class NumpyHead:
    """Implements HeadModel by the reference. passes: (rows, whether fed back) of each pass."""

    def __init__(self, head: TinyHead) -> None:
        self.made = head
        self.reference = ReferenceHead(head)
        dims = head.dims
        self.vocab_size, self.token_count = dims.rows or dims.vocab, dims.vocab
        self.hidden_size, self.state_width = dims.hidden, dims.width
        self.passes: list[tuple[int, bool]] = []

    def new_cache(self, capacity: int) -> NumpyCache:
        return NumpyCache(self.reference.dims.layers, capacity)

    def forward_head(
        self, items: Sequence[HeadItem], *, fed_back: bool
    ) -> tuple[list[FloatArray], list[FloatArray]]:
        logits, given = [], []
        for item in items:
            cache = item.cache
            assert isinstance(cache, NumpyCache)
            assert item.states.shape == (len(item.tokens), self.hidden_size if fed_back else self.state_width)
            assert cache.length + len(item.tokens) <= cache.capacity
            found = [
                self.reference.row(int(token), state, cache.keys, fed_back=fed_back)
                for token, state in zip(item.tokens, item.states, strict=True)
            ]
            rows = [found[i] for i in item.rows]
            logits.append(np.array([row for row, _ in rows], np.float32).reshape(len(rows), self.vocab_size))
            given.append(np.array([row for _, row in rows], np.float32).reshape(len(rows), self.hidden_size))
        self.passes.append((sum(len(item.tokens) for item in items), fed_back))
        return logits, given
