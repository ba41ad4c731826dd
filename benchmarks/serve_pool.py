"""Requests for serve.py's soak: some whose answer is determined by their body, and some to be refused."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.bench import workloads

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
SYSTEM = " ".join(item.prompt for item in workloads.load("summary")[:1])[
    :600
]  # a common prefix of many chats
PERSON = {
    "name": "person",
    "schema": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 6}, "old": {"type": "boolean"}},
        "required": ["name", "old"],
        "additionalProperties": False,
    },
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 6}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
SAMPLED = {"temperature": 0.9, "top_p": 0.95}
KINDS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("greedy", PLAIN, {"temperature": 0}),
    ("sampled", PLAIN, SAMPLED),
    ("chat", CHAT, {"temperature": 0}),
    ("sampled chat", CHAT, SAMPLED),
    ("two samples", PLAIN, {"n": 2, "temperature": 1.1, "top_k": 40}),
    ("logprobs", PLAIN, {"temperature": 0.7, "logprobs": 3}),
    ("regex", PLAIN, {"temperature": 1.0, "structured_outputs": {"regex": "[a-z]{2,8} [0-9]{1,3}"}}),
    ("schema", CHAT, {**SAMPLED, "response_format": {"type": "json_schema", "json_schema": PERSON}}),
    ("choice", CHAT, {"temperature": 1.0, "guided_choice": ["yes", "no", "perhaps"]}),
    ("penalties", PLAIN, {**SAMPLED, "presence_penalty": 0.5, "repetition_penalty": 1.2, "min_p": 0.02}),
    ("stop", PLAIN, {**SAMPLED, "stop": [" the", "\n\n", "."]}),
    ("tool", CHAT, {**SAMPLED, "tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}),
    ("echo", PLAIN, {**SAMPLED, "echo": True}),
    ("min tokens", PLAIN, {"temperature": 0.8, "min_tokens": 6, "stop": ["a"], "ignore_eos": True}),
)  # fmt: skip
LONG_ENOUGH = {"schema": 20, "tool": 26}  # tokens that suffice for a complete object


@dataclass(frozen=True, slots=True)
class Case:
    """A request whose body determines the answer. `body` is sent to `path`, streamed or not."""

    kind: str
    path: str
    body: dict[str, Any]


@dataclass(slots=True)
class Said:
    """The content of an answer, in the same form for whole and streamed answers.

    choices: by index, [text, calls, finish reason]; `calls` is the concatenation of the names and arguments
    of
             the tool calls.
    tokens:  of all choices, from the answer's usage.
    """

    choices: dict[int, list[str]] = field(default_factory=dict)
    tokens: int = 0
    ids: set[str] = field(
        default_factory=set, compare=False
    )  # answer ids; more than one if answers were mixed up

    def add(self, document: Mapping[str, Any]) -> None:
        """Add a whole answer or a chunk of a stream."""
        self.ids.add(str(document["id"]))
        if usage := document.get("usage"):
            self.tokens = usage["completion_tokens"]
        for choice in document["choices"]:
            mine = self.choices.setdefault(choice["index"], ["", "", ""])
            part = choice.get("message") or choice.get("delta") or {"content": choice.get("text")}
            mine[0] += part.get("content") or ""
            for call in part.get("tool_calls") or ():
                mine[1] += (call["function"].get("name") or "") + (call["function"].get("arguments") or "")
            mine[2] = choice.get("finish_reason") or mine[2]

    @property
    def whole(self) -> bool:
        """Whether every choice has a finish reason."""
        return bool(self.choices) and all(reason for _, _, reason in self.choices.values())

    def begins(self, other: Said) -> bool:
        """Whether this incomplete answer is a prefix of the other."""
        return all(
            theirs.startswith(ours)
            for i, mine in self.choices.items()
            for ours, theirs in zip(mine, other.choices.get(i, ["", "", ""]), strict=True)
        )


def pool(size: int, seed: int = 0) -> list[Case]:
    """Cases of every kind, each with a short prompt from the built-in workloads and its own seed."""
    rng = random.Random(seed)
    items = [item for name in workloads.BUILT_IN for item in workloads.load(name)]
    rng.shuffle(items)
    return [_case(n, items[n % len(items)].prompt, rng) for n in range(size)]


def _case(number: int, text: str, rng: random.Random) -> Case:
    kind, path, fields = KINDS[number % len(KINDS)]
    words = text.split()
    start = rng.randrange(max(1, len(words) - 8))
    prompt = " ".join(words[start : start + rng.randint(4, 16)])
    most = LONG_ENOUGH.get(kind, rng.randint(2, 9))
    body: dict[str, Any] = {**fields, "seed": rng.randrange(2**32), "max_tokens": most}
    if kind == "min tokens":
        body["max_tokens"] = max(7, most)
    if path == PLAIN:
        return Case(kind, path, {**body, "prompt": prompt})
    messages = [{"role": "user", "content": prompt}]
    if rng.random() < 0.4:
        messages.insert(0, {"role": "system", "content": SYSTEM})
    return Case(kind, path, {**body, "messages": messages})


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that must be refused, and the status codes that it may be answered with."""

    why: str
    statuses: tuple[int, ...]
    path: str = PLAIN
    content: bytes = b""
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)


def _json(why: str, body: object, path: str = PLAIN, statuses: Sequence[int] = (400,)) -> Refused:
    return Refused(why, tuple(statuses), path, json.dumps(body).encode())


def malformed() -> list[Refused]:
    """Bodies that are not JSON, not a request, or a request with invalid fields."""
    objects: list[object] = [[], "a", 5, None, True]
    texts: list[object] = ["", [], [[]], 5, [1, "a"], [-1], [10**9], None]
    messages: list[object] = [[], "a", [{"role": "king"}], [5]]
    return [
        *(
            Refused("not JSON", (400,), path, content)
            for path in (CHAT, PLAIN)
            for content in (b"", b"{", b"\xff\xfe\x00", b'{"prompt": "a",}', b"[" * 50_000, b"NaN")
        ),
        *(_json("no object", body) for body in objects),
        *(_json("no prompt", {"prompt": p}) for p in texts),
        *(_json("no messages", {"messages": m}, CHAT) for m in messages),
        *(_json("a bad field", {"prompt": "a", **bad}) for bad in _BAD_FIELDS),
        _json("half a surrogate", {"prompt": "a\ud800"}),
        _json("a template", {"messages": [_HI], "chat_template": "{{ x }}"}, CHAT),
        _json("a model that is not here", {"model": "other", "prompt": "a"}, statuses=(404,)),
        Refused("a path that is not here", (404,), "/v1/nothing", b"{}"),
        Refused("the wrong method", (405,), PLAIN, method="GET"),
    ]  # fmt: skip


_HI = {"role": "user", "content": "Hi."}
_BAD_FIELDS: tuple[dict[str, Any], ...] = (
    {"temperature": -1}, {"temperature": "hot"}, {"top_p": 0}, {"n": 0}, {"n": 10_000}, {"max_tokens": -2},
    {"max_tokens": 1.5}, {"nonsense": 1}, {"logit_bias": {"999999999": 1}}, {"logit_bias": {"a": 1}},
    {"stop": [5]}, {"seed": 2**70}, {"regex": "("}, {"grammar": "start: <"},
    {"json_schema": {"type": "horse"}},
    {"choice": []}, {"regex": "a", "choice": ["b"]}, {"speculative": {"method": "horse"}},
    {"response_format": {"type": "horse"}}, {"audio": {"voice": "x"}}, {"min_p": 2}, {"logprobs": 10_000},
)  # fmt: skip


def oversize(context: int, body_bytes: int) -> list[Refused]:
    """Prompts longer than the context, and bodies larger than the server's limit."""
    return [
        _json("too many ids", {"prompt": [5] * (context + 1), "max_tokens": 1}),
        _json("too long a text", {"prompt": "one two three " * context, "max_tokens": 1}),
        _json("too long a chat", {"messages": [{"role": "user", "content": "so " * 2 * context}]}, CHAT),
        _json("too large a body", {"prompt": "a" * body_bytes}, statuses=(413,)),
    ]


def strangers() -> Iterator[dict[str, str]]:
    """Headers without a valid API key."""
    yield {}
    for value in ("Bearer wrong", "Bearer", "Basic a2V5", "Bearer key-0, key-1", "key-0"):
        yield {"Authorization": value}
