"""Which server answers at an address, and what it tells of its speculation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from outrider.engines.vllm.metrics import counts
from outrider.engines.vllm.upstream import Upstream, UpstreamError

Kind: TypeAlias = Literal[
    "Outrider", "vLLM", "SGLang", "llama.cpp", "Ollama", "LM Studio", "TensorRT-LLM", "OpenAI-compatible"
]
SECONDS = 10.0  # for what a server says of itself
_SGLANG = ("speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk",
           "speculative_num_draft_tokens", "speculative_draft_model_path")  # fmt: skip
_LENGTH = "sglang:spec_accept_length"


@dataclass(frozen=True, slots=True)
class Drafted:
    """Counts of drafts. length: mean acceptance length where the server tells it in the place of counts."""

    drafts: float = 0.0
    tokens: float = 0.0
    accepted: float = 0.0
    length: float | None = None

    def __sub__(self, before: Drafted) -> Drafted:
        return Drafted(
            self.drafts - before.drafts,
            self.tokens - before.tokens,
            self.accepted - before.accepted,
            self.length,
        )

    def __add__(self, other: Drafted) -> Drafted:
        return Drafted(
            self.drafts + other.drafts,
            self.tokens + other.tokens,
            self.accepted + other.accepted,
            self.length,
        )

    @property
    def acceptance_rate(self) -> float | None:
        return self.accepted / self.tokens if self.tokens > 0 else None

    @property
    def mean_length(self) -> float | None:
        """1 + accepted / drafts: tokens of a step with a draft."""
        return 1 + self.accepted / self.drafts if self.drafts > 0 else self.length

    @property
    def draft_length(self) -> float | None:
        """Mean tokens of a draft."""
        return self.tokens / self.drafts if self.drafts > 0 else None


@dataclass(frozen=True, slots=True)
class Found:
    """A server. settings: of its speculation, {} where it tells none. tells: where acceptance comes from."""

    kind: Kind
    version: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    tells: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.version}".strip()

    @property
    def counts(self) -> bool:
        """Whether it counts drafted tokens; SGLang tells a mean length only."""
        return self.tells != "" and self.kind != "SGLang"


async def find(server: Upstream) -> Found:
    """What answers there. Raises UpstreamError where nothing does."""
    status = await _json(server, "/v1/outrider/status")
    if isinstance(status.get("speculation"), Mapping):
        return _outrider(status)
    page = await _text(server, "/metrics")
    version = str((await _json(server, "/version")).get("version", ""))[:60]
    if "vllm:" in page:
        return Found("vLLM", version, {}, "its metrics")
    return await _by_own_paths(server) or (
        Found("TensorRT-LLM", version, {}, "its metrics")
        if isinstance(_read(page), list)
        else Found("OpenAI-compatible", version)
    )


def _outrider(status: Mapping[str, Any]) -> Found:
    given = status["speculation"]
    config = given.get("config")
    settings = {"method": given.get("method"), **(config if isinstance(config, dict) else {})}
    settings = {str(key): value for key, value in settings.items() if value is not None}
    behind = status.get("engine")
    behind = behind if isinstance(behind, Mapping) else {}
    over = f" with vLLM {behind.get('version')}" if behind.get("name") == "vllm" else ""
    return Found("Outrider", f"{status.get('version', '')}{over}", settings, "its metrics")


async def _by_own_paths(server: Upstream) -> Found | None:
    """The server that has paths of its own besides OpenAI's."""
    for path in ("/server_info", "/get_server_info"):
        info = await _json(server, path)
        if "internal_states" in info or "speculative_algorithm" in info:
            settings = {key: info[key] for key in _SGLANG if info.get(key) is not None}
            return Found("SGLang", str(info.get("version", ""))[:60], settings, "its gauge of all requests")
    props = await _json(server, "/props")
    if "default_generation_settings" in props or "build_info" in props:
        return Found("llama.cpp", str(props.get("build_info", ""))[:60], {}, "the timings of each answer")
    if "version" in (ollama := await _json(server, "/api/version")):
        return Found("Ollama", str(ollama["version"])[:60])
    if isinstance((await _json(server, "/api/v0/models")).get("data"), list):
        return Found("LM Studio", "", {}, "the statistics of each answer")
    return None


async def drafted(server: Upstream, kind: Kind) -> Drafted:
    """What the server has counted so far, as far as this kind counts; of TensorRT-LLM, since it was last
    asked."""
    if kind in ("Outrider", "vLLM"):
        found = counts(await _text(server, "/metrics"))
        return Drafted(found.num_drafts, found.num_draft_tokens, found.num_accepted_tokens)
    if kind == "SGLang":
        return Drafted(length=_gauge(await _text(server, "/metrics"), _LENGTH))
    if kind == "TensorRT-LLM":
        rows = _read(await _text(server, "/metrics"))
        return _of_iterations(rows if isinstance(rows, list) else [])
    return Drafted()


def since(kind: Kind, before: Drafted, now: Drafted) -> Drafted:
    """What was counted between two answers of `drafted`."""
    return now if kind == "TensorRT-LLM" else now - before


def of_answer(kind: Kind, event: Mapping[str, Any]) -> Drafted:
    """What an event of an answer tells of its drafts: the last one of llama.cpp and of LM Studio."""
    if kind == "llama.cpp" and isinstance(times := event.get("timings"), Mapping):
        tokens, accepted = _number(times, "draft_n"), _number(times, "draft_n_accepted")
        # Every step writes one token of the target's own beside those accepted.
        steps = max(0.0, _number(times, "predicted_n") - accepted)
        return Drafted(steps if tokens else 0.0, tokens, accepted)
    for name in ("stats", "usage"):
        if kind == "LM Studio" and isinstance(stats := event.get(name), Mapping):
            tokens = _number(stats, "total_draft_tokens_count")
            if tokens:
                return Drafted(0.0, tokens, _number(stats, "accepted_draft_tokens_count"))
    return Drafted()


def _of_iterations(rows: list[Any]) -> Drafted:
    found = Drafted()
    for row in rows:
        stats = row.get("specDecodingStats") if isinstance(row, Mapping) else None
        if isinstance(stats, Mapping):
            names = ("numRequestsWithDraftTokens", "numDraftTokens", "numAcceptedTokens")
            found += Drafted(*(_number(stats, name) for name in names))
    return found


def _gauge(page: str, name: str) -> float | None:
    """The mean of a gauge over its labels; None without a value above 0."""
    values = []
    for line in page.splitlines():
        if line.startswith((f"{name}{{", f"{name} ")):
            try:
                values.append(float(line.rpartition(" ")[2]))
            except ValueError:
                continue
    mean = sum(values) / len(values) if values else 0.0
    return mean if 0 < mean < 1e6 else None


def _number(values: Mapping[str, Any], name: str) -> float:
    value = values.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return 0.0
    return float(value) if 0 <= value < 1e12 else 0.0


async def _text(server: Upstream, path: str) -> str:
    """The text of a path; "" where there is none."""
    try:
        status, raw = await server.read("GET", path, seconds=SECONDS)
    except UpstreamError as error:
        if "cannot be reached" in str(error):
            raise
        return ""
    return raw.decode("utf-8", "replace") if status == 200 else ""


async def _json(server: Upstream, path: str) -> dict[str, Any]:
    """The JSON object of a path; {} where there is none."""
    found = _read(await _text(server, path))
    return found if isinstance(found, dict) else {}


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
