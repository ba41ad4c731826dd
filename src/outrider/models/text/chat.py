"""Renders chat messages as a prompt, with the model's jinja2 template."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError, PromptError
from outrider.models.text.tokenizer import Tokenizer

START_SECONDS = 60.0  # to start Python and import jinja2 on a heavily loaded machine
MEMORY_BYTES = 1 << 30
# Variables of a template that callers do not set as they like.
RESERVED = {"messages", "tools", "add_generation_prompt", "documents", "chat_template"}

_MAY_BE_EMPTY = ("assistant", "tool")  # roles whose content clients send as null
# Where a content part has its text, by its type: in chats, in OpenAI's Responses API, and as refusals.
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_MARK = "\ue000outrider\ue001"  # stands for the end of a message that is to be continued


class ChatTemplate:
    """A model's chat template.

    A template comes from a model file and is not trusted, so it runs in jinja2's sandbox and in a separate
    process, which is started by the first rendering. `render` returns or raises within `seconds` (plus, once,
    the start of the process). The text has at most `max_chars` characters. Where the system supports such
    limits, the process has at most MEMORY_BYTES of memory. A template that exceeds a limit ends its own
    process, not this one. Instances may be shared between threads; their renderings run one at a time.
    """

    def __init__(
        self,
        source: str | None,
        tokenizer: Tokenizer,
        *,
        seconds: float = 10.0,
        max_chars: int = 16 << 20,
    ) -> None:
        """`source` is the template, which is compiled at its first use.

        Raises ConfigError when `source` is None or empty.
        """
        if not source:
            raise ConfigError(
                "the model has no chat template: give a plain prompt instead of messages, name a template"
                " with --chat-template, or choose a model that was trained for chat"
            )
        self._setup = {
            "source": source,
            "seconds": seconds,
            "max_chars": max_chars,
            "memory": MEMORY_BYTES,
        }
        self._seconds = seconds
        self._tokens = dict(tokenizer.named_tokens)
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        content_parts: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt of a conversation. It contains special tokens as text, so encode it with
        `add_special=False`.

        messages: dicts with `role` and `content` as in OpenAI's API. Content that is a list of text parts is
                  joined with newlines.
        add_generation_prompt: end with the beginning of the assistant's turn.
        tools, variables: passed to the template; JSON values.
        content_parts: give the template each content as a list of {'type': 'text', 'text': …}, not as text.
        Raises PromptError for messages that are malformed or that the template refuses, ConfigError when
        the template fails or exceeds its limits.
        """
        checked = _checked(messages)
        document = {
            **self._tokens,
            "documents": None,  # transformers defines it too
            **variables,
            "messages": [_in_parts(m) for m in checked] if content_parts else checked,
            "add_generation_prompt": add_generation_prompt,
            "tools": tools,
        }
        found = self._rendered(document)
        if "failed" in found and any(message["content"] is None for message in checked):
            # Some templates take a call's message only with a text, be it an empty one.
            filled = [{**m, "content": ""} if m["content"] is None else m for m in checked]
            again = [_in_parts(m) for m in filled] if content_parts else filled
            found = self._rendered({**document, "messages": again})
        if "text" in found:
            return str(found["text"])
        if "refused" in found:
            raise PromptError(f"the model's chat template refuses the messages: {_line(found['refused'])}")
        raise ConfigError(
            f"the model's chat template failed: {_line(found['failed'])};"
            " give a plain prompt instead of messages"
        )

    def render_unfinished(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str | None:
        """The prompt up to the end of the last message, which the model continues. Its content is text, of
        which no template trims the end. None when the template leaves the message out. Raises as `render`."""
        last = messages[-1]
        marked = [*messages[:-1], {**last, "content": last["content"] + _MARK}]
        text, mark, _ = self.render(marked, add_generation_prompt=False, **variables).rpartition(_MARK)
        return text if mark else None

    def close(self) -> None:
        """End the process. A later `render` starts a new one."""
        with self._lock:
            self._end()

    def _rendered(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """The sandbox's answer for these variables. Raises PromptError for what JSON cannot hold."""
        try:
            line = json.dumps({"variables": document}).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise PromptError(f"the messages hold something that JSON cannot: {error}") from None
        with self._lock:
            return self._ask(line)

    def _ask(self, line: bytes) -> dict[str, Any]:
        if self._process is not None and not self._process.alive:
            self._end()
        if self._process is None:
            self._process = _Process()
            if not self._process.ask(json.dumps(self._setup).encode() + b"\n", START_SECONDS):
                self._end()
                raise ConfigError("the process for chat templates did not start")
        found = self._process.ask(line, self._seconds)
        if found:
            return found
        late = self._process.late
        self._end()
        return {
            "failed": f"it took longer than {self._seconds:g} seconds"
            if late
            else "it used too much memory or crashed its process"
        }

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


class _Process:
    """A process that runs chat_sandbox.py. It is killed when this object is deleted."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("chat_sandbox.py")
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-P", str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise ConfigError(f"the process for chat templates did not start: {error}") from None
        self.late = False
        self.end = weakref.finalize(self, _stop, self._child)

    @property
    def alive(self) -> bool:
        return not self.late and self._child.poll() is None

    def ask(self, line: bytes, seconds: float) -> dict[str, Any]:
        """Send one line and return the answer; {} when the process died or was killed after `seconds`."""
        child = self._child
        assert child.stdin is not None
        assert child.stdout is not None
        timer = threading.Timer(seconds, self._kill)
        timer.start()
        try:
            child.stdin.write(line)
            child.stdin.flush()
            found: dict[str, Any] = json.loads(child.stdout.readline() or b"{}")
        except (OSError, ValueError):  # broken pipe or incomplete answer
            return {}
        finally:
            timer.cancel()
        return found

    def _kill(self) -> None:
        self.late = True
        self._child.kill()


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _checked(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with their content as plain text. Raises PromptError for malformed messages."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise PromptError("messages must be a list of {'role': …, 'content': …}")
    if not messages:
        raise PromptError("the list of messages is empty")
    found = []
    for n, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise PromptError(f"message {n} is a {type(message).__name__}, not a dict with role and content")
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise PromptError(f"message {n} has no role (system, user, assistant or tool)")
        content = message.get("content")
        if content is None and role not in _MAY_BE_EMPTY:
            raise PromptError(f"message {n} ({role}) has no content")
        if content is None and not message.get("tool_calls"):
            content = ""
        found.append({**message, "content": content_text(content, f"message {n}")})
    return found


def _in_parts(message: dict[str, Any]) -> dict[str, Any]:
    """A checked message with its content as a list of one part."""
    text = message["content"]
    return message if text is None else {**message, "content": [{"type": "text", "text": text}]}


def content_text(content: object, message: str) -> str | None:
    """The text of a content: a string, or a list of parts such as {'type': 'text', 'text': …}; None for None.
    Raises PromptError, which names the `message`, for other contents."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise PromptError(f"{message} has content of type {type(content).__name__}; use a text")
    texts = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, Mapping) else type(part).__name__
        name = _TEXT_PARTS.get(kind) if isinstance(part, Mapping) and isinstance(kind, str) else None
        if name is None:
            raise PromptError(f"{message} has a content part of type {kind!r:.80}; only text is supported")
        if not isinstance(part.get(name), str):
            raise PromptError(f"{message} has a content part of type {kind!r} without a text in {name!r}")
        texts.append(part[name])
    return "\n".join(texts)


def _line(text: object) -> str:
    return " ".join(str(text).split())[:400]
