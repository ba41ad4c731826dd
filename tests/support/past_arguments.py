"""Arguments of past tool calls as clients send them, and what templates are given, written as JSON."""

from __future__ import annotations

import json
from typing import Any

PAST_ARGUMENTS: list[tuple[Any, str]] = [
    ('{"a": 1}', '{"a": 1}'),
    ({"a": 1}, '{"a": 1}'),
    ('"{\\"a\\": 1}"', '{"a": 1}'),  # encoded twice
    ('"{\\"a\\": 1,}"', '{"a": 1}'),
    (' {"a": 1}\n', '{"a": 1}'),
    ("", "{}"),
    (" ", "{}"),
    (None, "{}"),
    ("null", "{}"),
    ('"null"', "{}"),
    ("{}", "{}"),
    ([], "{}"),  # PHP's empty object
    ("[]", "{}"),
    ("0", "0"),
    ("[1]", "[1]"),
    ('"words"', '"words"'),
    *(
        (text, json.dumps(text))  # no JSON: stays text
        for text in ('{"a": 1,}', '{"a": 1', "{a: 1}", '"', '{"a": "\\ud800"}', "[" * 5000, "9" * 5000)
    ),
]
