"""What training a draft model takes: time, by one layer and two with random weights, and memory."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from outrider.engines.torch.weights import random_weights
from outrider.models.source import ModelSource
from outrider.models.spec import ModelSpec
from outrider.training.costs import repeated
from outrider.training.draft import Draft
from outrider.training.draft_lesson import Example, loss_of
from outrider.training.probabilities import KEPT
from outrider.training.schedule import EVALUATING
from outrider.training.settings import Settings
from outrider.training.trainer import adam

ROWS, ANSWER = 192, 128  # of the text that is measured
SECONDS = 1.0
_FROZEN = ("token_embd.weight", "output.weight")


def training_speed(spec: ModelSpec, settings: Settings, device: str) -> float:
    """Tokens a second of updates, evaluations counted."""
    one, step = _seconds(spec, 1, settings, device)
    layer = 0.0
    if spec.n_layers > 1:
        two, _ = _seconds(spec, 2, settings, device)
        layer = max(0.0, two - one)
    seconds = one + (spec.n_layers - 1) * layer + spec.n_layers * step / settings.batch
    return ROWS / (seconds * (1 + EVALUATING))


def _seconds(spec: ModelSpec, layers: int, settings: Settings, device: str) -> tuple[float, float]:
    """Of a text's loss and gradient in a model of the first `layers`, and of the change of its weights."""
    cut = replace(spec, layers=spec.layers[:layers])
    weights = random_weights(cut, torch.device(device), torch.float32, tied=True, seed=0)
    draft = Draft(cut, weights, ROWS, rank=settings.rank)
    kept = min(KEPT, spec.vocab_size - 1)
    shares = torch.full((ANSWER, kept), 1 / (kept + 1), device=device)
    ids = torch.arange(kept, device=device).expand(ANSWER, kept)
    tokens = torch.arange(ROWS, device=device) % spec.vocab_size
    example = Example(tokens, ROWS - ANSWER, ids, shares)
    text = repeated(lambda: loss_of(draft, example).backward(), SECONDS)
    optimizer = adam(draft.parameters.values(), settings.rate)
    return text, repeated(optimizer.step, 0.0)


def training_bytes(source: ModelSource, settings: Settings) -> tuple[int, int]:
    """(of disk, for two checkpoints; of memory). Of each weight that is trained there are the value, two
    moments and, in memory, the gradient; a matrix that is changed by a low rank is there as it was, in
    bfloat16 and, at the end, changed; a text of the longest length leaves its activations behind."""
    spec, rank = source.architecture, settings.rank
    shapes = {name: tensor.shape for name, tensor in source.tensors.items()}
    frozen = sum(math.prod(shapes.pop(name, (0,))) for name in _FROZEN)
    trained = sum(math.prod(shape) for shape in shapes.values())
    if rank:
        frozen += trained * 5 // 2
        trained = rank * sum(sum(shape) for shape in shapes.values() if len(shape) == 2)
    length = settings.max_prompt + settings.max_answer
    heads = (2 * spec.n_heads + 2 * spec.n_kv_heads) * spec.head_dim
    activations = length * sum(
        8 * spec.hidden_size + 2 * heads + 5 * layer.feed_forward.size for layer in spec.layers
    )
    logits = 4 * settings.max_answer * spec.vocab_size
    return 2 * 12 * trained, 4 * (4 * trained + frozen + activations + logits)
