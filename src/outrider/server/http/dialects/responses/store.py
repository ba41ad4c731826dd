"""Responses that are kept in memory, so that later requests can go on from them."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from outrider.server.http.errors import ApiError, bad, json_bytes

Item: TypeAlias = Mapping[str, Any]  # as JSON, with an id


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A response.

    document: as it was sent.
    inputs:   the items of its own request, each with an id.
    history:  the items of the whole conversation: earlier ones, inputs, output.
    size:     bytes that count for the store's limit: of all this as JSON, shared parts too.
    """

    document: Mapping[str, Any]
    inputs: Sequence[Item]
    history: Sequence[Item]
    size: int
    created: float


class ResponseStore:
    """Keeps responses by namespace, which is one for each API key: none is found in another one. Called in
    the event loop's thread only.

    most:       responses.
    most_bytes: of all of them together. A response that is larger alone is not kept.
    seconds:    for which a response is kept.
    When there are too many, the oldest of the namespace with the most bytes goes first, so that one client
    cannot drive out those of others.
    """

    def __init__(
        self, *, most: int, most_bytes: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._most_bytes, self._seconds, self._clock = most, most_bytes, seconds, clock
        self._spaces: dict[str, OrderedDict[str, Stored]] = {}
        self._sizes: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._spaces.values()))

    @property
    def size(self) -> int:
        """Bytes of all responses."""
        return sum(self._sizes.values())

    def add(
        self,
        space: str,
        document: Mapping[str, Any],
        inputs: Sequence[Item],
        history: Sequence[Item],
    ) -> None:
        """Keep a response. Older ones may go."""
        size = len(json_bytes([document, inputs, history]))
        if size > self._most_bytes or self._most < 1:
            return
        self._drop_old()
        while self._spaces and (len(self) >= self._most or self.size + size > self._most_bytes):
            largest = max(self._sizes, key=lambda name: self._sizes[name])
            self._drop(largest, next(iter(self._spaces[largest])))
        stored = Stored(document, tuple(inputs), tuple(history), size, self._clock())
        self._spaces.setdefault(space, OrderedDict())[document["id"]] = stored
        self._sizes[space] = self._sizes.get(space, 0) + size

    def get(self, space: str, response_id: str) -> Stored:
        """A response. Raises ApiError (404)."""
        self._drop_old()
        found = self._in(space).get(response_id)
        if found is None:
            raise ApiError(
                404,
                f"there is no response {response_id[:80]!r}: it was not stored, was deleted, or is too old",
                param="response_id",
                code="response_not_found",
            )
        return found

    def delete(self, space: str, response_id: str) -> None:
        """Forget a response. Raises ApiError (404)."""
        self.get(space, response_id)
        self._drop(space, response_id)

    def history(self, space: str, response_id: str | None) -> Sequence[Item]:
        """The items of the conversation that ends with a response; () for None. Raises ApiError."""
        if response_id is None:
            return ()
        try:
            return self.get(space, response_id).history
        except ApiError as error:
            raise bad(error.message, "previous_response_id", "previous_response_not_found") from None

    def item(self, space: str, item_id: str) -> Item:
        """An item of a stored response's conversation, by its id. Raises ApiError."""
        self._drop_old()
        for stored in reversed(self._in(space).values()):
            for item in reversed(stored.history):
                if item["id"] == item_id:
                    return item
        raise bad(f"there is no stored item {item_id[:80]!r}: send the item itself", "input")

    def _in(self, space: str) -> OrderedDict[str, Stored]:
        return self._spaces.get(space) or OrderedDict()

    def _drop_old(self) -> None:
        limit = self._clock() - self._seconds
        for space in list(self._spaces):
            for response_id, stored in list(self._spaces[space].items()):
                if stored.created > limit:
                    break
                self._drop(space, response_id)

    def _drop(self, space: str, response_id: str) -> None:
        self._sizes[space] -= self._spaces[space].pop(response_id).size
        if not self._spaces[space]:
            del self._spaces[space], self._sizes[space]
