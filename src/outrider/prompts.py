"""The forms of a prompt that the Python API takes, in vLLM's names."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, NotRequired, TypeAlias, TypedDict

from outrider.decoding.sampling.params import SamplingParams
from outrider.errors import ConfigError, PromptError, nearest
from outrider.models.text.tokenizer import Tokenizer


class TextPrompt(TypedDict):
    """A prompt as text.

    cache_salt: drafts are looked up in recent outputs of the same salt only.
    """

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as token ids; its text, if given, is only repeated in the output."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


Prompt: TypeAlias = str | Sequence[int] | TextPrompt | TokensPrompt | Mapping[str, Any]
Params: TypeAlias = SamplingParams | Sequence[SamplingParams] | None

KEYS = ("prompt", "prompt_token_ids", "cache_salt")
_RENAMED = {"text": "prompt", "input_ids": "prompt_token_ids", "token_ids": "prompt_token_ids"}
_TEXT_ONLY = ("multi_modal_data", "mm_processor_kwargs", "multi_modal_uuids", "prompt_embeds")


def prompt_list(prompts: Any, prompt_token_ids: Any = None) -> list[Prompt]:
    """The prompts of a call: one prompt or several.

    prompt_token_ids: vLLM's older way to give token ids, of one prompt or of several; texts beside them are
                      only repeated in the outputs.
    Raises PromptError.
    """
    if prompt_token_ids is not None:
        found = prompt_list(_plain(prompt_token_ids))
        if prompts is None:
            return found
        texts = prompt_list(prompts)
        if len(texts) != len(found):
            raise PromptError(f"there are {len(texts)} prompts and {len(found)} lists of token ids")
        return [{"prompt": text, "prompt_token_ids": ids} for text, ids in zip(texts, found, strict=True)]
    prompts = _plain(prompts)
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Iterable) or isinstance(prompts, bytes):
        raise PromptError(f"a prompt must be text, token ids or a mapping, not {type(prompts).__name__}")
    several = list(prompts)
    if several and all(isinstance(p, Integral) for p in several):
        return [several]
    return several


def params_list(params: SamplingParams | Sequence[SamplingParams], count: int) -> list[SamplingParams]:
    """Sampling parameters for so many prompts. Raises ConfigError."""
    if isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, Sequence) or not all(isinstance(p, SamplingParams) for p in params):
        raise ConfigError("sampling_params must be a SamplingParams or a list of them")
    if len(params) != count:
        raise ConfigError(
            f"there are {count} prompts and {len(params)} sampling_params; give one, or one each"
        )
    return list(params)


def read_prompt(prompt: Prompt, tokenizer: Tokenizer) -> tuple[str | None, list[int]]:
    """A prompt's text (None when only ids were given) and its token ids. Raises PromptError."""
    if isinstance(prompt, str):
        if not prompt:
            raise PromptError("the prompt is empty: give some text")
        return prompt, tokenizer.encode(prompt)
    if isinstance(prompt, Mapping):
        for key in prompt:
            _check_key(key, prompt)
        text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if text is not None and not isinstance(text, str):
            raise PromptError(f"the prompt must be text, not {type(text).__name__}")
        if ids is None:
            return read_prompt(text or "", tokenizer)
        return text, _token_ids(ids)
    return None, _token_ids(prompt)


def salt_of(prompt: Prompt) -> str | None:
    """A prompt's cache_salt. Raises PromptError when it is not a text."""
    salt = prompt.get("cache_salt") if isinstance(prompt, Mapping) else None
    if salt is not None and (not isinstance(salt, str) or not salt):
        raise PromptError(f"a prompt's cache_salt must be text that is not empty, not {salt!r}")
    return salt


def _check_key(key: object, prompt: Mapping[str, Any]) -> None:
    """Raise PromptError for a key that a prompt does not have."""
    name = str(key)
    if name in KEYS or (name in _TEXT_ONLY and not prompt[name]):
        return
    if name in _TEXT_ONLY:
        raise PromptError(f"a prompt's {name} is refused: models here read text only")
    if name in ("role", "content"):
        raise PromptError("a prompt is text or token ids, and these are messages: give them to chat()")
    hint = f": use {_RENAMED[name]!r}" if name in _RENAMED else nearest(name, KEYS)
    raise PromptError(f"a prompt has no key {key!r}{hint}")


def _plain(value: Any) -> Any:
    """An array or a tensor as lists; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") and not isinstance(value, str | Mapping) else value


def _token_ids(ids: Any) -> list[int]:
    ids = _plain(ids)
    if not isinstance(ids, Sequence) or isinstance(ids, str | bytes):
        raise PromptError(f"token ids must be a list of integers, not {type(ids).__name__}")
    if not ids:
        raise PromptError("the prompt is empty: it needs at least one token")
    found = []
    for token in ids:
        try:
            found.append(operator.index(token))
        except TypeError:
            raise PromptError(f"token ids must be integers, not {token!r}") from None
        if isinstance(token, bool):
            raise PromptError(f"token ids must be integers, not {token!r}")
    return found
