"""A run from the target to a draft's files: texts, what the target computes over them, training, export."""

from __future__ import annotations

import torch

from outrider.errors import ConfigError
from outrider.training.base_run import Order
from outrider.training.draft_run import DraftRun
from outrider.training.head_run import HeadRun
from outrider.training.prompts import read_prompts
from outrider.training.settings import OWN, RunFolder


def run(order: Order) -> bool:
    """Do it, or as much as there is time for. Returns whether the draft is made. Raises OutriderError."""
    _check_device(order.device)
    prompts = read_prompts([name for name in order.data if name != OWN])
    RunFolder(order.folder).known()  # a damaged one is told before anything is loaded
    if order.threads is not None:
        torch.set_num_threads(order.threads)
    return (HeadRun if order.draft is None else DraftRun)(order, prompts).run()


def _check_device(device: str) -> None:
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n", 1)[0]
        raise ConfigError(f"--device {device!r} cannot be used: {reason}") from None
