"""Makes child servers of one configuration, with more or fewer draft tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outrider.config.vllm import VllmConfig
from outrider.engines.vllm.installed import Installed
from outrider.engines.vllm.process import Child, free_port
from outrider.engines.vllm.translate import command

_BATCH_SIZES = "num_speculative_tokens_per_batch_size"


@dataclass(frozen=True, slots=True)
class Launch:
    """A child that is not started yet. speculative: keys of its `speculative_config`. line: its command."""

    child: Child
    speculative: Mapping[str, Any]
    line: str


@dataclass(frozen=True, slots=True)
class Launcher:
    """What all children of a server have in common. passed: flags of vLLM's own. log: see `Child`."""

    config: VllmConfig
    version: Installed
    passed: Sequence[str] = ()
    log: Callable[[str], object] | None = None

    def __call__(self, draft_tokens: int | None = None) -> Launch:
        """A child with at most so many draft tokens; 0 is without speculation, None as configured. Raises
        ConfigError."""
        config = self.config
        if draft_tokens is not None:
            config = replace(config, speculative=with_draft_tokens(config.speculative, draft_tokens))
        port = free_port()
        made = command(config, self.version, port, self.passed)
        return Launch(Child(made, port, self.log), made.speculative, str(made))


def with_draft_tokens(speculative: Mapping[str, Any], count: int) -> dict[str, Any]:
    """The keys of a `speculative_config` with at most so many draft tokens; {} for 0."""
    if not count:
        return {}
    found = {**speculative, "num_speculative_tokens": count}
    if _BATCH_SIZES in found:
        found[_BATCH_SIZES] = [
            [start, end, min(int(most), count)] for start, end, most in found[_BATCH_SIZES]
        ]
    return found
