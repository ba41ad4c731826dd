"""An EAGLE-3 head in PyTorch, with the same mathematics as the engine's, and its training-time test.

The target's hidden states of a token are normed together, reduced by `fc`, and normed again; one layer of
Llama's kind reads them beside the next token's normed embedding. The first layer adds to the normed states
(`norm_before_residual`), which keeps the residual stream small however large the target's is.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from outrider.training.sizes import HeadSizes


class RmsNorm(nn.Module):  # type: ignore[misc]
    """Root mean square norm with a weight (Zhang and Sennrich 2019)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()  # what a product of bfloat16 gave
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Layer(nn.Module):  # type: ignore[misc]
    """The parts of the head's layer, under the names of checkpoints."""

    def __init__(self, s: HeadSizes) -> None:
        super().__init__()
        q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
        self.input_layernorm = RmsNorm(s.hidden, s.eps)
        self.hidden_norm = RmsNorm(s.hidden, s.eps)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": nn.Linear(2 * s.hidden, q, bias=False),
                "k_proj": nn.Linear(2 * s.hidden, kv, bias=False),
                "v_proj": nn.Linear(2 * s.hidden, kv, bias=False),
                "o_proj": nn.Linear(q, s.hidden, bias=False),
            }
        )
        self.post_attention_layernorm = RmsNorm(s.hidden, s.eps)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(s.hidden, s.ffn, bias=False),
                "up_proj": nn.Linear(s.hidden, s.ffn, bias=False),
                "down_proj": nn.Linear(s.ffn, s.hidden, bias=False),
            }
        )


class Head(nn.Module):  # type: ignore[misc]
    """The head. embedding: float[ids, hidden] and output: float[rows, hidden] are the target's, and stay."""

    embedding: Tensor
    output: Tensor

    def __init__(self, sizes: HeadSizes, embedding: Tensor, output: Tensor, seed: int = 0) -> None:
        super().__init__()
        self.sizes = sizes
        self.input_norm = RmsNorm(sizes.states * sizes.hidden, sizes.eps)
        self.fc = nn.Linear(sizes.states * sizes.hidden, sizes.hidden, bias=False)
        self.layers = nn.ModuleList([Layer(sizes)])
        self.norm = RmsNorm(sizes.hidden, sizes.eps)
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("output", output, persistent=False)
        random = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                scale = 0.3 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                weight.data.normal_(0, scale * weight.shape[1] ** -0.5, generator=random)

    def prepare(self, deviation: Tensor, norm: Tensor) -> None:
        """Begin from what is known of the target: all columns of its states count alike, `fc` passes the last
        state on, and the logits are about as large as noise.

        deviation: float[states * hidden], the root mean square of each column of its hidden states.
        norm:      float[hidden], the weight of its final norm.
        """
        whole, hidden = deviation.pow(2).mean().sqrt(), self.sizes.hidden
        with torch.no_grad():
            self.input_norm.weight.copy_((whole / deviation.clamp_min(whole * 1e-3)).clamp(max=1e3))
            self.fc.weight.mul_(0.3)
            self.fc.weight[:, -hidden:].add_(torch.eye(hidden, device=norm.device))
            # With the target's own weight, the logits of a random direction are several times too sure.
            spread = (self.output * norm).pow(2).sum(1).sqrt().mean()
            self.norm.weight.copy_(norm / spread)

    def logits(self, given: Tensor) -> Tensor:
        """float[…, rows] of what `unroll` yields."""
        return F.linear(self.norm(given), self.output)

    def unroll(self, states: Tensor, tokens: Tensor, steps: int, first: int = 0) -> Iterator[Tensor]:
        """What the head gives for each row, with its own outputs fed back (Li et al. 2025).

        states: float[batch, rows, states * hidden], the target's of each row's token.
        tokens: int64[batch, rows + steps - 1], of which the row r reads the one at r + k in step k.
        first:  rows before this one are only attended to.
        Yields float[batch, rows - first, hidden] for each step k: of a draft that began at the row, and whose
        first k tokens were `tokens`.
        """
        count = states.shape[1]
        layer = self.layers[0]
        attn = layer.self_attn
        x = self.fc(self.input_norm(states))
        begun = _Rotation(self.sizes, count + steps, states.device)
        far = torch.arange(count, device=states.device)
        hidden_later = far[None, :] > far[first:, None]  # rows that a row does not see
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for k in range(steps):
            start = 0 if k == 0 else first
            embedded = layer.input_layernorm(self.embedding[tokens[:, start + k : count + k]])
            normed = layer.hidden_norm(x)
            read = torch.cat([embedded, normed], dim=-1)
            keys.append(begun(self._split(attn["k_proj"](read), self.sizes.kv_heads), start + k))
            values.append(self._split(attn["v_proj"](read), self.sizes.kv_heads))
            if k == 0:
                read, normed = read[:, first:], normed[:, first:]
            query = begun(self._split(attn["q_proj"](read), self.sizes.heads), first + k)
            h = normed + attn["o_proj"](self._attend(query, keys, values, hidden_later))
            y = layer.post_attention_layernorm(h)
            x = h + layer.mlp["down_proj"](F.silu(layer.mlp["gate_proj"](y)) * layer.mlp["up_proj"](y))
            yield x

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, self.sizes.head_dim)).transpose(1, 2)

    def _attend(
        self, query: Tensor, keys: list[Tensor], values: list[Tensor], hidden_later: Tensor
    ) -> Tensor:
        """A row sees the target's rows up to its own, and of each step before only its own draft's."""
        group = self.sizes.heads // self.sizes.kv_heads
        keys = [key.repeat_interleave(group, dim=1) for key in keys]
        values = [value.repeat_interleave(group, dim=1) for value in values]
        query = query * self.sizes.head_dim**-0.5
        true = (query @ keys[0].transpose(-1, -2)).masked_fill(hidden_later, -torch.inf)
        own = [(query * key).sum(-1, keepdim=True) for key in keys[1:]]
        shares = torch.softmax(torch.cat([true, *own], dim=-1), dim=-1)
        count = keys[0].shape[2]
        found = shares[..., :count] @ values[0]
        for k, value in enumerate(values[1:]):
            found = found + shares[..., count + k : count + k + 1] * value
        return found.transpose(1, 2).flatten(2)


class _Rotation:
    """Rotary embedding of the pairs (i, i + half), at the positions from `start` on."""

    def __init__(self, sizes: HeadSizes, length: int, device: torch.device) -> None:
        half = sizes.head_dim // 2
        rates = sizes.theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
        self._cos = angles.cos().float().to(device)
        self._sin = angles.sin().float().to(device)

    def __call__(self, x: Tensor, start: int) -> Tensor:
        cos, sin = (table[start : start + x.shape[2]] for table in (self._cos, self._sin))
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
