"""From the fields of other servers to this server's own: pure functions on the JSON of a request's body."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticCustomError

from outrider.server.http.request_fields import RENAMED, shown

# Where llama.cpp's samplers stand in its usual order, and what is off here when one is left out.
_SAMPLERS: Mapping[str, tuple[int, Mapping[str, float]]] = {
    "penalties": (0, {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}),
    "dry": (1, {}),
    "top_n_sigma": (2, {}),
    "top_k": (3, {"top_k": 0}),
    "typ_p": (4, {}),
    "top_p": (5, {"top_p": 1.0}),
    "min_p": (6, {"min_p": 0.0}),
    "xtc": (7, {}),
    "temperature": (8, {"temperature": 1.0}),
}
_SAMPLER_NAMES = {
    **{name: name for name in _SAMPLERS},
    **dict.fromkeys(("typical_p", "typical", "typ", "tfs_z"), "typ_p"),
    **{"temp": "temperature", "nucleus": "top_p"},
}
_SAMPLER_LETTERS = {
    **{"e": "penalties", "d": "dry", "s": "top_n_sigma", "k": "top_k", "y": "typ_p"},
    **{"p": "top_p", "m": "min_p", "x": "xtc", "t": "temperature"},
}
_THINKING = {"enabled": True, "adaptive": True, "disabled": False}
_OWN_ORDER = ("penalties", "temperature", "min_p", "top_k", "top_p")
_PENALTIES = _SAMPLERS["penalties"][1]


def field_error(field: str, message: str) -> PydanticCustomError:
    """An error about one field of an object. The message is passed in the context, because pydantic formats
    the template."""
    return PydanticCustomError("field", "{message}", {"message": message, "field": field[:80]})


def translated(data: Mapping[str, Any], own: frozenset[str]) -> dict[str, Any]:
    """A body with the fields of RENAMED translated into others; `own` are the names of the model that will
    read it. What it does not know, it leaves as it is. Raises PydanticCustomError for values that cannot be
    translated, and for two fields of which one says something else than the other."""
    found = dict(data)
    chat = "messages" in own
    if not chat:
        _rename(found, "max_completion_tokens", "max_tokens")
    for name in ("n_predict", "max_new_tokens", "min_new_tokens", "n_cmpl", "repeat_penalty"):
        _rename(found, name, RENAMED[name][1])
    for name in ("return_tokens", "ebnf", "no_stop_trim"):
        _rename(found, name, RENAMED[name][1])
    if found.get("grammar") == "":  # llama.cpp's clients send an empty one
        del found["grammar"]
    _n_probs(found, chat)
    _samplers(found)
    _thinking(found, chat)
    if _taken(found, "separate_reasoning", bool) is False and chat:
        _put(found, "reasoning_format", "none", "separate_reasoning")
    if found.get("reasoning_format") in ("auto", "deepseek") or not chat:  # what is done anyway
        found.pop("reasoning_format", None)
    for name in ("repeat_last_n", "penalty_last_n"):
        _window(found, name)
    if _taken(found, "cache_prompt", bool) is False:
        found["cache_salt"] = secrets.token_hex(16)
    drafts = _number(found, "speculative.n_max", 0)
    if drafts is not None and found.get("speculative") is None:
        found["speculative"] = {"num_speculative_tokens": drafts} if drafts else False
    return found


def _rename(found: dict[str, Any], name: str, new: str) -> None:
    value = found.pop(name, None)
    if value is not None:
        _put(found, new, value, name)


def _put(found: dict[str, Any], name: str, value: object, source: str) -> None:
    """Set a field, for the sake of another one of the request."""
    given = found.get(name)
    if given is not None and given != value:
        raise field_error(source, f"{source} and {name} differ; give one")
    found[name] = value


def _taken(found: dict[str, Any], name: str, kind: type) -> Any:
    """Take a field out. None when it is not there."""
    value = found.pop(name, None)
    if value is not None and type(value) is not kind:
        wanted = "true or false" if kind is bool else f"a {kind.__name__}"
        raise field_error(name, f"{name} must be {wanted}, not {shown(value)}")
    return value


def _number(found: dict[str, Any], name: str, least: int) -> int | None:
    """Take a field out whose value is a whole number."""
    value = found.pop(name, None)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or value < least:
        raise field_error(name, f"{name} must be a whole number of at least {least}, not {shown(value)}")
    return int(value)


def _n_probs(found: dict[str, Any], chat: bool) -> None:
    count = _number(found, "n_probs", 0)
    if not count:
        return
    if chat:
        _put(found, "logprobs", True, "n_probs")
    _put(found, "top_logprobs" if chat else "logprobs", count, "n_probs")


def _thinking(found: dict[str, Any], chat: bool) -> None:
    """The switch of a model's reasoning, as gateways and Anthropic's clients write it."""
    on = _taken(found, "enable_thinking", bool)
    switch = found.pop("thinking", None)
    if switch is not None:
        kind = switch.get("type") if isinstance(switch, Mapping) else None
        if not isinstance(kind, str) or kind not in _THINKING:
            types = ", ".join(_THINKING)
            raise field_error("thinking", f"thinking must have one of the types {types}, not {shown(switch)}")
        if on is not None and on != _THINKING[kind]:
            raise field_error("thinking", "thinking and enable_thinking differ; give one")
        on = _THINKING[kind]
    if on and not chat:
        name = "enable_thinking" if switch is None else "thinking"
        raise field_error(name, f"{name} is refused: it is a field of /v1/chat/completions")
    variables = found.get("chat_template_kwargs") or {}
    if on is None or not chat or not isinstance(variables, Mapping):
        return
    found["chat_template_kwargs"] = {"enable_thinking": on, **variables}
    if found["chat_template_kwargs"]["enable_thinking"] != on:
        raise field_error(
            "chat_template_kwargs", "chat_template_kwargs has another enable_thinking; give one"
        )


def _window(found: dict[str, Any], name: str) -> None:
    """How many of the last tokens the penalties look at."""
    size = _number(found, name, -1)
    if size == 0:
        found.update(_PENALTIES)
    elif size is not None and size > 0:
        on = [p for p, off in _PENALTIES.items() if found.get(p) is not None and found[p] != off]
        if on:
            raise field_error(
                name, f"{name}={size} is refused: {on[0]} looks at all tokens; send -1 or leave it out"
            )


def _samplers(found: dict[str, Any]) -> None:
    """Turn off what a list of samplers leaves out. The order is fixed here, so another one is refused."""
    given = found.pop("samplers", None)
    if not given and given in (None, "", []):
        return
    names = _sampler_names(given)
    places = [_SAMPLERS[name][0] for name in names]
    own = [_OWN_ORDER.index(name) for name in names if name in _OWN_ORDER]
    if places != sorted(places) and own != sorted(own):
        order = ", ".join(_OWN_ORDER)
        raise field_error("samplers", f"samplers in this order are refused: it is {order}; leave them out")
    for name, (_, off) in _SAMPLERS.items():
        if name not in names:
            found.update(off)


def _sampler_names(given: object) -> list[str]:
    """The known names of a list of names, or of a text of names or letters."""
    if isinstance(given, str) and ";" not in given and given not in _SAMPLER_NAMES:
        parts: Any = list(given)
        known: Mapping[str, str] = _SAMPLER_LETTERS
    else:
        parts = given.split(";") if isinstance(given, str) else given
        known = _SAMPLER_NAMES
    if not isinstance(parts, list):
        raise field_error("samplers", f"samplers must be a list of names, not {shown(given)}")
    names = []
    for part in parts[:100]:
        name = known.get(part.lower().replace("-", "_")) if isinstance(part, str) else None
        if name is None:
            there = ", ".join(_SAMPLERS)
            raise field_error("samplers", f"samplers has {shown(part)}, which is none of {there}")
        if name not in names:
            names.append(name)
    return names
