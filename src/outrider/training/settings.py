"""What a run is: its settings, and the folder that keeps all of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from outrider.config.speculative import DEFAULT_DRAFT_TOKENS
from outrider.errors import ConfigError, ModelFileError
from outrider.models.source import ModelSource

FORMAT = 1
OWN = "self"  # in the place of a file of prompts: those that the target writes
RUN = "run"  # the subfolder with all that is not the draft itself
_LIMIT = 1 << 20  # bytes of a settings file
_SAMPLE = 1 << 16  # bytes of the embedding that identify it


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the draft depends on. Two runs of equal settings on one machine give the same head, or the same
    draft model.

    data:         "self", the digest of the files' prompts, or both: "self and 0123456789abcdef".
    tokens:       of answers that are wanted.
    epochs:       times that each text is trained on.
    temperatures: of the answers, in turn.
    max_prompt, max_answer: in tokens.
    vocab:        rows of the head's output; 0: chosen by `coverage` of held-out answers' tokens.
    steps:        of the head's own tokens that are trained (training-time test, Li et al. 2025); of a draft
                  model, tokens of the drafts whose acceptance is told.
    batch:        texts of one update of the weights.
    rate:         the highest learning rate.
    rank:         of the changes of a draft model's matrices; 0: all of its layers' weights are trained.
    """

    data: str
    tokens: int
    epochs: int = 4
    seed: int = 0
    temperatures: tuple[float, ...] = (0.0, 0.7)
    max_prompt: int = 512
    max_answer: int = 384
    vocab: int = 0
    coverage: float = 0.95
    steps: int = 4
    batch: int = 2
    rate: float = 1e-3
    rank: int = 0

    def __post_init__(self) -> None:
        for name in ("tokens", "epochs", "max_prompt", "max_answer", "steps", "batch"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name.replace('_', '-')} must be at least 1, not {getattr(self, name)}")
        if not 0 < self.rate < 1:
            raise ConfigError(f"the learning rate must be above 0 and below 1, not {self.rate:g}")
        if self.vocab < 0 or self.rank < 0 or self.steps > 16:
            raise ConfigError("vocab and rank must not be negative, and steps at most 16")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed must be in 0..{2**32 - 1}, not {self.seed}")
        if not self.temperatures or not all(0 <= t <= 5 for t in self.temperatures):
            raise ConfigError("temperatures must be between 0 and 5")

    @property
    def sources(self) -> tuple[str, ...]:
        """The parts of `data`."""
        return tuple(self.data.split(" and "))

    def describe(self) -> str:
        """The texts, for a model card."""
        heat = " and ".join(f"{t:g}" for t in self.temperatures)
        named = {OWN: "prompts that the target wrote itself"}
        data = " and ".join(named.get(source, "prompts of files") for source in self.sources)
        return f"{data}, answered by the target at the temperatures {heat}"


# Where the settings of a draft model, which knows the language already, are others than a head's.
DRAFT_DEFAULTS: Mapping[str, Any] = {
    "epochs": 3,
    "batch": 4,
    "rate": 6e-5,
    "rank": 16,
    "steps": DEFAULT_DRAFT_TOKENS,
}


def identity(source: ModelSource) -> dict[str, Any]:
    """What tells a target from others, wherever its files lie: names, sizes, and a digest of some weights."""
    spec = source.architecture
    digest = hashlib.sha256(source.tensors["output_norm.weight"].data.tobytes())
    digest.update(source.tensors["token_embd.weight"].data.reshape(-1)[:_SAMPLE].tobytes())
    return {
        "name": source.display_name,
        "layers": spec.n_layers,
        "hidden_size": spec.hidden_size,
        "vocab_size": spec.vocab_size,
        "weights": digest.hexdigest()[:16],
        "quantization": source.quantization,
    }


def digest_of(prompts: list[str]) -> str:
    """The digest of a file's prompts."""
    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:16]


class RunFolder:
    """The folder of a run: DIR has the draft's files, DIR/run what it was made of."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = path / RUN

    @property
    def texts(self) -> Path:
        return self.run / "texts.jsonl"

    @property
    def states(self) -> Path:
        return self.run / "states"

    @property
    def probabilities(self) -> Path:
        return self.run / "probabilities"

    @property
    def files(self) -> tuple[Path, ...]:
        """What takes much of the disk."""
        return self.states, self.probabilities, self.checkpoint

    @property
    def checkpoint(self) -> Path:
        return self.run / "checkpoint.pt"

    def known(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """(target, settings) of the run that is there, or None. Raises ModelFileError for a damaged one."""
        path = self.run / "run.json"
        if not path.exists():
            return None
        try:
            if path.stat().st_size > _LIMIT:
                raise ValueError
            found = json.loads(path.read_text("utf-8"))
            if found["format"] != FORMAT:
                raise ValueError
            return dict(found["target"]), dict(found["settings"])
        except OSError as error:
            raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ModelFileError(f"{path}: is not what `outrider train` writes; use another folder") from None

    def begin(self, target: Mapping[str, Any], settings: Settings, given: frozenset[str]) -> Settings:
        """Begin the run, or go on with the one that is there, whose settings are then used.

        target: what `identity` says of it, and under "draft" the same of the draft model, if there is one.
        given: names of the settings that the command line says; the others are those of the run.
        Raises ConfigError where the folder has another target's run or draft's, or one of other settings,
        naming these.
        """
        known = self.known()
        if known is None:
            if self.path.is_dir() and any(self.path.iterdir()):
                raise ConfigError(
                    f"-o {self.path}: has other files in it; give a new folder, or that of a run"
                )
            self.write(target, settings)
            return settings
        there, old = known
        if there.get("draft") != target.get("draft"):
            other = there.get("draft")
            what = f"another draft model, {other.get('name')!r}" if isinstance(other, dict) else "a head"
            raise ConfigError(f"-o {self.path}: holds a run that trains {what}; use another folder")
        if there != target:
            raise ConfigError(
                f"-o {self.path}: holds a run for another target, {there.get('name')!r}; use another folder"
            )
        wanted = json.loads(json.dumps(asdict(settings)))
        different = [name for name in sorted(given) if old.get(name) != wanted[name]]
        if different:
            says = ", ".join(f"{name} {old.get(name)!r}, not {wanted[name]!r}" for name in different)
            raise ConfigError(f"-o {self.path}: holds a run with {says}; use another folder")
        try:
            return Settings(**{**old, "temperatures": tuple(old["temperatures"])})
        except (TypeError, KeyError):
            raise ModelFileError(
                f"{self.run / 'run.json'}: settings are missing; use another folder"
            ) from None

    def write(self, target: Mapping[str, Any], settings: Settings) -> None:
        """Note what the run is."""
        self.run.mkdir(parents=True, exist_ok=True)
        document = {"format": FORMAT, "target": dict(target), "settings": asdict(settings)}
        replace_file(self.run / "run.json", json.dumps(document, indent=1).encode())


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of the one at `path` once it is whole: whatever happens, the old
    one or the new one is there."""
    new = path.with_name(path.name + ".new")
    with open(new, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file in this way."""
    with replacing(path) as file:
        file.write(content)
