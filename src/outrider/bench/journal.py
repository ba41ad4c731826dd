"""Keeps the finished parts of a long measurement in a file, so that it can be interrupted and resumed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError


class Journal:
    """A JSON-lines file of `{"settings": …, "key": [...], "value": …}`; new parts are appended.

    settings: what the values depend on. Lines with other settings stay in the file and are ignored.
    Raises ConfigError when the file cannot be read or written.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self._settings = json.loads(json.dumps(settings))
        self._values: dict[tuple[str, ...], Any] = {}
        try:
            text = path.read_text("utf-8") if path.exists() else ""
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(f"the journal {str(path)!r} cannot be used: {e}") from None
        if text and not text.endswith("\n"):  # interrupted while a line was being written
            self._file.write("\n")
        for line in text.splitlines():
            try:
                entry = json.loads(line)
                if entry["settings"] == self._settings:
                    self._values[tuple(entry["key"])] = entry["value"]
            except (ValueError, KeyError, TypeError):
                continue

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __getitem__(self, key: tuple[str, ...]) -> Any:
        return self._values[key]

    def add(self, key: tuple[str, ...], value: Any) -> None:
        """Record a finished part; it is in the file when this returns."""
        entry = {"settings": self._settings, "key": key, "value": value}
        print(json.dumps(entry, ensure_ascii=False, allow_nan=False), file=self._file, flush=True)
        self._values[key] = value

    def close(self) -> None:
        self._file.close()
