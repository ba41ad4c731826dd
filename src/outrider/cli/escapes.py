"""Escape sequences in prompts, as llama.cpp's `-e` reads them."""

from __future__ import annotations

import re

_PLAIN = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
# Bytes that stand next to each other may be one character in UTF-8.
_SEQUENCE = re.compile(r"((?:\\x[0-9A-Fa-f]{2})+)|\\([nrt'\"\\])")


def unescaped(text: str) -> str:
    r"""The text with \n, \r, \t, \', \", \\ and \xHH (a byte of UTF-8) as what they stand for; any other
    backslash stays. Bytes that are not UTF-8 become U+FFFD."""

    def one(match: re.Match[str]) -> str:
        if match[1]:
            return bytes.fromhex(match[1].replace("\\x", "")).decode("utf-8", "replace")
        return _PLAIN[match[2]]

    return _SEQUENCE.sub(one, text)
