"""Heads that come with the package, under names of their own: nothing is fetched for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class BundledHead:
    """An EAGLE-3 head in GGUF; docs/train.md says what it was made of.

    target:   the model of the catalog that it reads.
    made_for: the name that this model's files give it, whatever they hold its weights in.
    license:  its short name.
    """

    name: str
    title: str
    file_name: str
    target: str
    made_for: str
    license: str

    @property
    def path(self) -> Path:
        """Its file, which is a part of the package."""
        return Path(__file__).parent.parent / "bundled" / self.file_name


_HEADS = (
    BundledHead(
        name="smollm2-head",
        title="EAGLE-3 head of SmolLM2-135M, Q4_0",
        file_name="smollm2-135m-instruct-eagle3-q4_0.gguf",
        target="smollm2",
        made_for="Smollm2 135M 8k Lc100K Mix1 Ep2",
        license="Apache-2.0",
    ),
)

BUNDLED: Mapping[str, BundledHead] = MappingProxyType({head.name: head for head in _HEADS})
