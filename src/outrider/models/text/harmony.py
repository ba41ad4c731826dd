"""Reads OpenAI's harmony format, in which gpt-oss writes: messages in channels.

An answer is `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>`.
The channel `analysis` has the thoughts, `final` the answer, and `commentary` what is said before a call, or
with ` to=functions.NAME` the arguments of a call. (https://github.com/openai/harmony, docs/format.md)
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from outrider.models.text.marks import first_mark, overlap

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
MARKS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, RETURN, CALL)
CALL_OPEN = f"{CHANNEL}commentary to=functions."  # of calls as `HarmonyReader` hands them on
_ENDS = (END, RETURN, CALL, START, CHANNEL)  # a message ends where one of these comes
_HEAD_BEGINS = (START, CHANNEL, CONSTRAIN, "to=")
MAX_HEAD = 300  # characters of a message's head
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")
_CHANNEL_NAME = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")

Kind: TypeAlias = Literal["head", "reasoning", "content", "call"]


class HarmonyReader:
    """Parts an answer in harmony's messages into thoughts and the rest, as `ThoughtReader` says.

    Calls are part of the rest, each as `CALL_OPEN` with the function's name, `<|message|>`, the arguments and
    `<|call|>`, wherever in the head the recipient stood. Several messages of one kind are one text of several
    lines. Blanks around the thoughts belong to neither.
    """

    def __init__(self, kind: Kind = "head") -> None:
        self._kind: Kind = kind
        self._held = ""  # text that is not decided yet
        self._thought = self._said = False  # thoughts, or ordinary text, were returned
        self._gap = ""  # blanks at the end of the thoughts
        self._apart = False  # a line break is due before ordinary text

    @classmethod
    def after(cls, prompt: str, *, continued: bool) -> HarmonyReader:
        """The reader of an answer to a prompt, given by its end. continued: the answer goes on with the
        prompt's last message."""
        if continued:
            return cls("content")
        reader = cls()
        _, mark, head = prompt.rpartition(START)
        if mark:
            reader.push(mark + head)
        return reader

    @property
    def inside(self) -> bool:
        """Whether the text so far ends within thoughts."""
        return self._kind == "reasoning"

    def push(self, text: str) -> tuple[str, str]:
        """The new thoughts, and the new text after them."""
        self._held += text
        found = {"reasoning": "", "content": ""}
        while self._step(found):
            pass
        return found["reasoning"], found["content"]

    def finish(self) -> tuple[str, str]:
        """What is still held back at the end of the text. A head without a message is dropped."""
        found = {"reasoning": "", "content": ""}
        held, self._held = self._held, ""
        if self._kind != "head":
            self._add(found, held)
        elif not _is_head(held):
            self._kind = "content"
            self._add(found, held)
        return found["reasoning"], found["content"]

    def _step(self, found: dict[str, str]) -> bool:
        """Read part of the text that is held. False: more text is needed."""
        if self._kind == "head":
            return self._head(found)
        at, mark = first_mark(self._held, _ENDS)
        if not mark:
            keep = max(overlap(self._held, end) for end in _ENDS)
            size = len(self._held) - keep
            self._add(found, self._held[:size])
            self._held = self._held[size:]
            return False
        self._add(found, self._held[:at])
        if self._kind == "call":
            found["content"] += CALL
        # The mark of a new message is the first of its head.
        self._held = self._held[at if mark in (START, CHANNEL) else at + len(mark) :]
        self._kind, self._apart = "head", self._said
        self._gap = "\n" if self._thought else ""
        return True

    def _head(self, found: dict[str, str]) -> bool:
        """Read a message's head. False: more text is needed."""
        head, mark, rest = self._held.partition(MESSAGE)
        if not mark and _may_be_head(head) and len(head) <= MAX_HEAD:
            return False
        if not mark or not _is_head(head):  # no message of the format
            self._kind = "content"
            return bool(self._held)
        self._held = rest
        channel = _CHANNEL_NAME.search(head)
        recipient = _RECIPIENT.search(head)
        if recipient is not None:
            self._kind = "call"
            found["content"] += f"{CALL_OPEN}{recipient[1]}{MESSAGE}"
        else:
            self._kind = "reasoning" if channel is not None and channel[1] == "analysis" else "content"
        return True

    def _add(self, found: dict[str, str], text: str) -> None:
        """Text of the current message."""
        if self._kind == "reasoning":
            text = self._gap + text
            text = text if self._thought else text.lstrip()
            size = len(text.rstrip())
            text, self._gap = text[:size], text[size:]  # blanks wait for what follows
            self._thought = self._thought or bool(text)
            found["reasoning"] += text
        elif text:
            if self._kind == "content":
                text = "\n" + text if self._apart else text
                self._said, self._apart = True, False
            found["content"] += text


def _may_be_head(text: str) -> bool:
    """Whether a text may be, or become, the beginning of a message's head."""
    begun = text.lstrip()
    return _is_head(text) or any(mark.startswith(begun) for mark in (*_HEAD_BEGINS, MESSAGE))


def _is_head(text: str) -> bool:
    return not text.strip() or text.lstrip().startswith(_HEAD_BEGINS)
