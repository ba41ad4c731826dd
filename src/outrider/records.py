"""Small numbers that are measured or learned once and kept on disk for the next process.

A record is a JSON object in a file that is named by all that its numbers depend on, so that another model or
machine never finds it. Losing one costs only measuring or learning again: nothing here raises for its sake.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path

from outrider.models.download import cache_root, write_json

logger = logging.getLogger("outrider")


def record_path(kind: str, facts: Sequence[object], folder: Path | None = None) -> Path:
    """The file of what depends on `facts`, JSON values: in `folder`, or that of its kind in the cache."""
    name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
    return (folder or cache_root() / kind) / f"{name}.json"


def keep(path: Path, value: dict[str, object]) -> bool:
    """Write a record. False, and a line in the log, where that cannot be done."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, value)
    except OSError as error:
        logger.debug("what was measured could not be kept in %s: %s", path, error)
        return False
    return True
