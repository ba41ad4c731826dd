"""A draft model in PyTorch whose layers can be trained: the torch engine's modules over one whole text.

Weights are float32, and the layers' products of bfloat16 where the device multiplies that faster. The
embedding and the output matrix stay as they are: they are a third of the weights of a small model or more,
most of their rows are of tokens that no text has, and what they cost in memory and time is better spent on
texts.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from outrider.engines.torch.module import LayerWeights, Module, Weights
from outrider.engines.torch.ops import Group, Layout, TorchOps
from outrider.models.spec import ModelSpec
from outrider.training.low_rank import LowRank
from outrider.training.precision import mixed_precision, products

Floats: TypeAlias = npt.NDArray[np.float32]

# Parts of a layer by the names of files, for each of the modules' tensors: one after the other in its rows.
PARTS = {
    "qkv": ("attn_q.weight", "attn_k.weight", "attn_v.weight"),
    "qkv_bias": ("attn_q.bias", "attn_k.bias", "attn_v.bias"),
    "output": ("attn_output.weight",),
    "output_bias": ("attn_output.bias",),
    "gate_up": ("ffn_gate.weight", "ffn_up.weight"),
    "down": ("ffn_down.weight",),
    "attn_norm": ("attn_norm.weight",),
    "q_norm": ("attn_q_norm.weight",),
    "k_norm": ("attn_k_norm.weight",),
    "post_attention_norm": ("post_attention_norm.weight",),
    "ffn_norm": ("ffn_norm.weight",),
    "post_ffn_norm": ("post_ffw_norm.weight",),
}
NORM = "output_norm.weight"
MATRICES = ("qkv", "output", "gate_up", "down")


class Draft:
    """The draft model.

    weights: float32, on one device; taken over.
    longest: text, in tokens.
    rank:    of the change of each matrix that is trained (`LowRank`); 0: all weights of the layers and the
             last norm are.
    mixed:   whether the layers' products are of bfloat16; None: where the device has them.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        longest: int,
        *,
        rank: int = 0,
        seed: int = 0,
        mixed: bool | None = None,
    ) -> None:
        self.spec, self.weights = spec, weights
        self._mixed = mixed_precision(self.device) if mixed is None else mixed
        self._module = Module(spec, weights, TorchOps(), longest)
        self._changes: dict[str, LowRank] = {}
        if rank:
            generator = torch.Generator().manual_seed(seed)
            for i, layer in enumerate(weights.layers):
                for name in MATRICES:
                    made = LowRank(getattr(layer, name), rank, generator, mixed=self._mixed)
                    self._changes[f"blk.{i}.{name}"] = made
                    setattr(layer, name, made)
        for weight in self.parameters.values():
            weight.requires_grad_()

    @property
    def device(self) -> torch.device:
        return self.weights.embedding.device

    @property
    def parameters(self) -> dict[str, Tensor]:
        """What is trained: the layers' tensors as the modules have them, and the last norm; or `a` and `b` of
        each matrix's change."""
        if self._changes:
            return {
                f"{name}.{part}": getattr(made, part)
                for name, made in self._changes.items()
                for part in ("a", "b")
            }
        found = {NORM: self.weights.norm}
        for i, layer in enumerate(self.weights.layers):
            for field in fields(LayerWeights):
                if (weight := getattr(layer, field.name)) is not None:
                    found[f"blk.{i}.{field.name}"] = weight
        return found

    def logits(self, tokens: Tensor, first: int) -> Tensor:
        """float32[n - first, vocab]: what follows each of the tokens from `first` on.

        tokens: int64[n], a text from its beginning.
        """
        count, spec, device = len(tokens), self.spec, self.device
        position = torch.arange(count, dtype=torch.int32, device=device)
        nothing = torch.zeros_like(position)
        # The tokens are one pass on an empty cache, with a tensor of its own for the keys and values of each
        # layer, since gradients go back through what is written there.
        layout = Layout(nothing, nothing, position, None, count, (Group(0, count, 0, 0, None),))
        shape = (count, spec.n_kv_heads, spec.head_dim)
        kind = torch.bfloat16 if self._mixed else torch.float32
        keys, values = (
            [torch.zeros(shape, dtype=kind, device=device) for _ in spec.layers] for _ in range(2)
        )
        with products(device, self._mixed):
            hidden, _ = self._module.forward(tokens, position.long(), layout, keys=keys, values=values)
        # In float32 again: bfloat16 would round a logit of 20 by up to 0.06.
        return self._module.logits(hidden[first:].float())

    def arrays(self) -> dict[str, Floats]:
        """What was trained, by the names of files: float32 arrays of the tensors' shapes. Biases that a file
        leaves out are among them where others of the same three are there."""
        spec = self.spec
        heads = {"attn_q": spec.n_heads, "attn_k": spec.n_kv_heads, "attn_v": spec.n_kv_heads}
        found = {}
        changed = {name: made.dequantized() for name, made in self._changes.items()}
        for name, weight in (changed or self.parameters).items():
            rows: Floats = weight.detach().cpu().numpy()
            if name == NORM:
                found[name] = rows
                continue
            before, _, field = name.rpartition(".")
            at, parts = 0, PARTS[field]
            for part in parts:
                count = (
                    heads[part.split(".")[0]] * spec.head_dim if len(parts) == 3 else len(rows) // len(parts)
                )
                found[f"{before}.{part}"] = rows[at : at + count]
                at += count
        return found
