"""Recent outputs of this process, for suffix lookup by other requests of the same namespace."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from outrider.drafters._lookup import GramIndex
from outrider.policy.tuning import DEFAULT

SEPARATOR = -1  # between outputs in an index; not a token id, so no match crosses it
PROMPT_TAIL = DEFAULT.output_prompt_tail
MAX_BYTES = 64 * 1024 * 1024


class OutputPool:
    """Recent outputs, in one index for each namespace. The oldest outputs are dropped when there are more
    than `max_requests` or they take more than `max_bytes`.

    nbytes: approximate bytes of all indexes.
    """

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self.max_requests, self.max_bytes = max_requests, max_bytes
        self.nbytes = 0
        self._indexes: dict[str, GramIndex] = {}
        self._outputs: deque[tuple[str, int]] = deque()  # (namespace, tokens with separator), oldest first

    def __len__(self) -> int:
        return len(self._outputs)

    def limit(self, max_bytes: int) -> None:
        """Change `max_bytes`; outputs beyond it are dropped."""
        self.max_bytes = max_bytes
        self._shrink()

    def get(self, namespace: str) -> GramIndex | None:
        """The outputs of a namespace, separated by SEPARATOR; None when there are none."""
        return self._indexes.get(namespace)

    def add(self, namespace: str, text: Sequence[int], prompt_length: int = 0) -> None:
        """Add one output: the tokens of `text` after its first `prompt_length`."""
        if len(text) <= prompt_length or not self.max_requests:
            return
        kept = text[max(0, prompt_length - PROMPT_TAIL) :]
        index = self._indexes.get(namespace)
        before = 0 if index is None else index.nbytes
        if index is None:
            index = self._indexes[namespace] = GramIndex([])
        index.tokens.extend([*kept, SEPARATOR])
        index.update()
        self.nbytes += index.nbytes - before
        self._outputs.append((namespace, len(kept) + 1))
        self._shrink()

    def _shrink(self) -> None:
        while len(self._outputs) > self.max_requests or (self._outputs and self.nbytes > self.max_bytes):
            namespace, count = self._outputs.popleft()
            index = self._indexes[namespace]
            self.nbytes -= index.nbytes
            index.forget(count)
            if index.tokens:
                self.nbytes += index.nbytes
            else:
                del self._indexes[namespace]
