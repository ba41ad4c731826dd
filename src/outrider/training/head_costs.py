"""What training a head takes: time, measured on numbers of no meaning, and memory."""

from __future__ import annotations

import torch

from outrider.training.costs import repeated
from outrider.training.head import Head
from outrider.training.head_lesson import Example, Target, loss_of
from outrider.training.precision import mixed_precision, products
from outrider.training.settings import Settings
from outrider.training.sizes import HeadSizes

USUAL_ROWS = 8192  # of the output, before it is known


def training_speed(sizes: HeadSizes, vocab: int, settings: Settings, device: str) -> float:
    """Tokens a second of an update, on numbers of no meaning."""
    count, rows = 256, min(settings.vocab or USUAL_ROWS, vocab)
    output = torch.full((rows, sizes.hidden), 0.01, device=device)
    head = Head(sizes, output, output).to(device)
    target = Target(
        torch.arange(rows, device=device), torch.ones(sizes.hidden, device=device), output, sizes.eps
    )
    example = Example(
        torch.ones((count, sizes.states * sizes.hidden), device=device),
        torch.zeros(count + 1, dtype=torch.int64, device=device),
        torch.ones((count, sizes.hidden), device=device),
        torch.zeros(count, dtype=torch.int64, device=device),
        count // 4,
        count // 4 + settings.steps,
    )

    def update() -> None:
        with products(output.device, mixed_precision(output.device)):
            loss = loss_of(head, target, example, settings.steps)
        loss.backward()

    return count / repeated(update)


def training_bytes(sizes: HeadSizes, vocab: int, settings: Settings) -> int:
    """Of memory that training takes beside the target: matrices of the target as float32, the head with its
    gradient and two moments, and what a text of the usual length leaves behind."""
    rows = min(settings.vocab or USUAL_ROWS, vocab)
    attention = sizes.hidden * sizes.head_dim * (3 * sizes.heads + 4 * sizes.kv_heads)
    weights = sizes.hidden * (sizes.states * sizes.hidden + 3 * sizes.ffn) + attention
    length = settings.max_prompt + settings.max_answer
    activations = settings.steps * length * (4 * rows + 8 * sizes.ffn + 2 * sizes.heads * length)
    return 4 * ((vocab + 2 * rows) * sizes.hidden + 4 * weights + activations)
