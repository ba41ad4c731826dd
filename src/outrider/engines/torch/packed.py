"""Matrices whose weights stay in 8 or 4 bits on the device, held and multiplied by torchao or bitsandbytes.

Weight-only: activations, sums and everything else have the type of `--dtype`. Both libraries are imported
where the first matrix is packed.
"""

from __future__ import annotations

import importlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812

from outrider.device_memory import NF4_BLOCK
from outrider.errors import ConfigError

LOUD = ("torchao", "bitsandbytes", "torch.utils._pytree")  # they warn of what other machines would have


class Packed(ABC):
    """A matrix [rows, columns] in few bits."""

    @abstractmethod
    def product(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """x[n, columns] times the matrix transposed, plus bias[rows]: [n, rows], of the type of x."""

    @abstractmethod
    def dequantized(self) -> torch.Tensor:
        """The values that `product` multiplies by."""

    @abstractmethod
    def tensors(self) -> list[torch.Tensor]:
        """All that it holds on the device."""


Matrix: TypeAlias = torch.Tensor | Packed
Pack: TypeAlias = Callable[[torch.Tensor], Matrix]


class Int8Rows(Packed):
    """Eight bits a weight and a scale for each row: torchao's `Int8WeightOnlyConfig`."""

    def __init__(self, values: torch.Tensor) -> None:
        torchao = library("torchao.quantization")
        with torch.device("meta"):
            linear = torch.nn.Linear(values.shape[1], values.shape[0], bias=False)
        linear.weight = torch.nn.Parameter(values, requires_grad=False)
        torchao.quantize_(linear, torchao.Int8WeightOnlyConfig(set_inductor_config=False))
        self._held: Any = linear.weight

    def product(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.linear(x, self._held, bias)

    def dequantized(self) -> torch.Tensor:
        found: torch.Tensor = self._held.dequantize()
        return found

    def tensors(self) -> list[torch.Tensor]:
        names, _ = self._held.__tensor_flatten__()
        return [getattr(self._held, name) for name in names]


class Nf4Blocks(Packed):
    """Four bits a weight, of the sixteen values of NF4 (Dettmers et al. 2023, QLoRA), and a float32 scale for
    each NF4_BLOCK weights: what bitsandbytes does of itself in vLLM."""

    def __init__(self, values: torch.Tensor) -> None:
        self._library = library("bitsandbytes")
        self._functional = library("bitsandbytes.functional")
        self._held, self._state = self._functional.quantize_4bit(
            values, blocksize=NF4_BLOCK, quant_type="nf4", compress_statistics=False
        )

    def product(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        found: torch.Tensor = self._library.matmul_4bit(x, self._held.t(), self._state, bias=bias)
        return found

    def dequantized(self) -> torch.Tensor:
        found: torch.Tensor = self._functional.dequantize_4bit(self._held, self._state)
        return found

    def tensors(self) -> list[torch.Tensor]:
        return [self._held, self._state.absmax]


PACKINGS: dict[str, type[Int8Rows | Nf4Blocks]] = {"torchao": Int8Rows, "bitsandbytes": Nf4Blocks}
"""By the name of `--quantization`, which is that of the library."""


def library(name: str) -> Any:
    """A module of one of the libraries. Raises ConfigError where it cannot be imported, as when it was
    built for another PyTorch."""
    loggers = [logging.getLogger(each) for each in LOUD]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        return importlib.import_module(name)
    except (ImportError, OSError, AttributeError, RuntimeError) as error:
        package, problem = name.partition(".")[0], " ".join(str(error).split())[:200]
        raise ConfigError(f"quantization={package!r}: {package} cannot be imported: {problem}") from None
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
