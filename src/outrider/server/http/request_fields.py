"""Every field of a generation request that is known: OpenAI's, vLLM's, llama.cpp's and SGLang's.

A field is in one of three tables. HONOURED fields are fields of the models in protocol.py. RENAMED ones are
translated into those (request_translation.py). UNUSED ones have no effect here: a value that asks for
nothing else is accepted, any other is refused with the reason and what to do. The tables of
docs/requests.md are written from these (`python tests/scripts/write_request_fields.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

OPENAI, VLLM, LLAMA, SGLANG, OWN = "OpenAI", "vLLM", "llama.cpp", "SGLang", "Outrider"
_O, _V, _L, _S = (OPENAI,), (VLLM,), (LLAMA,), (SGLANG,)
_OV, _VS, _VL, _OVL, _OVS = (*_O, *_V), (*_V, *_S), (*_V, *_L), (*_O, *_V, *_L), (*_O, *_V, *_S)
_ALL = (*_O, *_V, *_L, *_S)

Whose: TypeAlias = tuple[str, ...]
Unused: TypeAlias = "Mapping[str, tuple[Whose, Accepted, str]]"


@dataclass(frozen=True, slots=True)
class Accepted:
    """The values of an unused field that are accepted; null always is.

    words: the values, in Markdown.
    """

    words: str
    test: Callable[[object], bool]


def _values(*values: object) -> Accepted:
    """These JSON values."""
    words = ", ".join(f"`{json.dumps(value)}`" for value in values)
    return Accepted(words, lambda given: any(same(given, value) for value in values))


def same(one: object, other: object) -> bool:
    """Whether two JSON values are equal: 1 is also 1.0, but not true."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_ANY = Accepted("any", lambda _: True)
_NONE = Accepted("", lambda _: False)
_EMPTY = _values([], {})
_UP_TO_0 = Accepted("`0` or less", lambda v: _is_number(v) and v <= 0)  # type: ignore[operator]
_FROM_1 = Accepted("`1` or more", lambda v: _is_number(v) and v >= 1)  # type: ignore[operator]
_UP_TO_1 = Accepted("`0`, `1`", lambda v: _is_number(v) and v in (0, 1))
_ZERO_SCALES = Accepted(
    "`[]`, scales of `0`",
    lambda v: isinstance(v, list) and all(isinstance(part, dict) and part.get("scale") == 0 for part in v),
)

# Name: (whose it is, what it does).
HONOURED: Mapping[str, tuple[Whose, str]] = {
    "model": (_ALL, "one of /v1/models"),
    "messages": (_ALL, "the conversation"),
    "prompt": (_ALL, "a text, token ids, or a list of either"),
    "suffix": (_OVS, "the text behind a gap that is filled in; refused where the model cannot"),
    "echo": (_OVL, "the prompt, or the continued message, in front of the text"),
    "max_tokens": (_ALL, "most tokens; -1: to the end of the context"),
    "max_completion_tokens": (_ALL, "the same"),
    "min_tokens": (_VS, "before so many, nothing ends the text"),
    "n": (_ALL, "samples of each prompt"),
    "best_of": (_OVS, "must equal `n`: samples are not ranked"),
    "temperature": (_ALL, "0 takes the likeliest token"),
    "top_p": (_ALL, "keep the likeliest tokens of this probability together"),
    "top_k": (_VL + _S, "keep so many likeliest tokens; 0 or -1: all"),
    "min_p": (_VL + _S, "drop tokens less likely than this share of the likeliest"),
    "presence_penalty": (_ALL, "on tokens of the output"),
    "frequency_penalty": (_ALL, "on tokens of the output, by their number"),
    "repetition_penalty": (_VS, "on tokens of prompt and output"),
    "seed": (_ALL, "any integer of 64 bits, signed or not; -1: a random one"),
    "logit_bias": (_ALL, "by token id; or pairs `[id or text, bias]`, where false bans a token"),
    "stop": (_ALL, "texts that end the output"),
    "stop_token_ids": (_VS, "token ids that end the output"),
    "include_stop_str_in_output": (_V, "leave the stop text in the output"),
    "ignore_eos": (_VL + _S, "go on after the end of the text"),
    "allowed_token_ids": (_V, "no other token is written"),
    "bad_words": (_V, "texts that are not written"),
    "logprobs": (_ALL, "log-probabilities of the tokens"),
    "top_logprobs": (_ALL, "of so many likeliest tokens too"),
    "logprob_token_ids": (_V, "of these tokens, in the place of the likeliest"),
    "prompt_logprobs": (_V, "log-probabilities of the prompt's tokens"),
    "skip_special_tokens": (_VS, "leave special tokens out of the text"),
    "spaces_between_special_tokens": (_V, "both values mean the same"),
    "add_special_tokens": (_V, "BOS in front of the prompt, where the model wants it"),
    "truncate_prompt_tokens": (_V, "keep the prompt's last tokens; -1: all that leave room for `max_tokens`"),
    "truncation_side": (_V, '`"right"`: keep its first tokens instead'),
    "response_format": (_ALL, "the form of the output"),
    "structured_outputs": (_V, "the same under vLLM's name"),
    "guided_decoding": (_V, "the same under an older name"),
    "guided_json": (_V, "a JSON schema"),
    "guided_regex": (_V, "a regex"),
    "guided_choice": (_V, "one of these texts"),
    "guided_grammar": (_V, "a grammar"),
    "guided_whitespace_pattern": (_V, "the blanks that JSON may have"),
    "json_schema": (_L + _S, "a JSON schema"),
    "regex": (_S, "a regex"),
    "choice": ((OWN,), "one of these texts"),
    "grammar": (_L, "a grammar (GBNF or Lark)"),
    "tools": (_ALL, "functions that may be called"),
    "tool_choice": (_ALL, "whether one is called, and which"),
    "parallel_tool_calls": (_OVL, "whether there may be several calls"),
    "stream": (_ALL, "send the text as it is written"),
    "stream_options": (_ALL, "`include_usage`, `continuous_usage_stats`, `include_outrider`"),
    "reasoning_effort": (_OVS, "for the chat template, if it reads it"),
    "include_reasoning": (_V, "false: thoughts are written, and not sent"),
    "reasoning_format": (_L, '`"none"`: thoughts are left in the text; `"auto"` and `"deepseek"` part them'),
    "add_generation_prompt": (_VL, "end the prompt with the start of an answer"),
    "continue_final_message": (_VL + _S, "go on with the last message"),
    "documents": (_V, "for the chat template"),
    "chat_template": (_V, "refused without --trust-request-chat-template"),
    "chat_template_kwargs": (_VL + _S, "variables of the chat template"),
    "return_token_ids": (_V, "token ids beside the text"),
    "return_tokens_as_token_ids": (_V, "`token_id:N` for texts in log-probabilities"),
    "cache_salt": (_VS, "share cached prefixes with the same salt only"),
    "prediction": (_O, "what the answer may be like; drafts are looked up in it"),
    "draft_text": ((OWN,), "the same for a completion: a text or token ids"),
    "speculative": ((OWN,), "false: plain decoding; or which drafter, and how far"),
    "outrider": ((OWN,), "how each token came about, and the metrics"),
}

# Name: (whose it is, the field it becomes, how).
RENAMED: Mapping[str, tuple[Whose, str, str]] = {
    "n_predict": (_L, "max_tokens", ""),
    "max_new_tokens": (_S, "max_tokens", ""),
    "min_new_tokens": (_S, "min_tokens", ""),
    "n_cmpl": (_L, "n", ""),
    "repeat_penalty": (_L, "repetition_penalty", ""),
    "return_tokens": (_L, "return_token_ids", ""),
    "ebnf": (_S, "grammar", ""),
    "no_stop_trim": (_S, "include_stop_str_in_output", ""),
    "n_probs": (_L, "logprobs", "in a chat also `top_logprobs`; 0: none"),
    "repeat_last_n": (_L, "repetition_penalty", "-1: penalties look at all tokens, as they always do; 0: "
                      "none is on; other numbers are accepted where no penalty is on"),
    "penalty_last_n": (_L, "repetition_penalty", "the same"),
    "samplers": (_L, "top_k", "filters, temperature and penalties that it leaves out are off; accepted in "
                 "llama.cpp's usual order and in this server's"),
    "cache_prompt": (_L, "cache_salt", "false: a salt that nobody else has"),
    "speculative.n_max": (_L, "speculative", "most draft tokens of a step; 0: plain decoding"),
    "separate_reasoning": (_S, "reasoning_format", "false: `none`"),
    "enable_thinking": ((), "chat_template_kwargs", "the template's variable of that name"),
    "thinking": ((), "chat_template_kwargs", "`enable_thinking`: false for the type `disabled`, true for "
                 "`enabled` and `adaptive`; a budget is not enforced"),
}  # fmt: skip

_BEAMS = "there is no beam search; n samples are independent"
_ADAPTERS = "adapters are not built; merge them into the model"
_TEXT_ONLY = "this server reads and writes text only"
_ONE_SERVER = "there is one server only"
_FILTERS = "this sampler is not built; use top_p, top_k or min_p"
_BUDGET = "thoughts are as long as the model makes them; use max_tokens, or enable_thinking to turn them off"
_LAZY = "a grammar holds from the first token on; use tools and tool_choice"
_ORDER = "requests are served in the order in which they come"

# Name: (whose it is, values that are accepted, why others are refused).
UNUSED: Unused = {
    # OpenAI's
    "user": (_OVS, _ANY, ""),
    "metadata": (_O, _ANY, ""),
    "store": (_O, _ANY, ""),  # chats and completions are never kept
    "service_tier": (_O, _ANY, ""),
    "safety_identifier": (_O, _ANY, ""),
    "prompt_cache_key": (_O, _ANY, ""),
    "prompt_cache_retention": (_O, _ANY, ""),
    "prompt_cache_options": (_O, _ANY, ""),
    "modalities": (_O, _values(["text"]), _TEXT_ONLY),
    "audio": (_O, _NONE, _TEXT_ONLY),
    "web_search_options": (_O, _NONE, "this server searches nothing"),
    "moderation": (_O, _NONE, "this server moderates nothing"),
    "verbosity": (_O, _values("medium"), "say it in the prompt"),
    "functions": (_O, _values([]), "use tools"),
    "function_call": (_O, _values("none", "auto"), "use tool_choice"),
    # vLLM's
    "request_id": (_V, _ANY, ""),
    "session_id": (_V, _ANY, ""),
    "stream_interval": (_V, _ANY, ""),
    "routed_experts_prompt_start": (_V, _ANY, ""),
    "return_token_offsets": (_V, _ANY, ""),
    "return_mm_kwargs": (_V, _ANY, ""),
    "return_prompt_text": (_V, _values(False), "/tokenize and /detokenize show a conversation's prompt"),
    "priority": (_VS, _values(0), _ORDER),
    "thinking_token_budget": (_V, _values(-1), _BUDGET),
    "repetition_detection": (_V, _EMPTY, "use the penalties"),
    "watermarking": (_V, _values(False), "no text is marked"),
    "use_beam_search": (_V, _values(False), _BEAMS),
    "length_penalty": (_V, _values(1), _BEAMS),
    "early_stopping": (_V, _values(False), _BEAMS),
    "guided_decoding_backend": (
        _V, _values("auto", "guidance", "llguidance"), "llguidance is the only one here"),
    "logits_processors": (_V, _EMPTY, "no code of a request is ever run; use logit_bias or a grammar"),
    "structural_tag": (_V, _NONE, "write it as a grammar"),
    "prompt_embeds": (_V, _EMPTY, "give the prompt as text or token ids"),
    "mm_processor_kwargs": (_V, _EMPTY, _TEXT_ONLY),
    "media_io_kwargs": (_V, _EMPTY, _TEXT_ONLY),
    "kv_transfer_params": (_V, _EMPTY, _ONE_SERVER),
    "ec_transfer_params": (_V, _EMPTY, _ONE_SERVER),
    "vllm_xargs": (_V, _EMPTY, "there are no plug-ins to read them"),
    # llama.cpp's
    "id_slot": (_L, _ANY, ""),
    "slot_id": (_L, _ANY, ""),
    "n_keep": (_L, _ANY, ""),  # of a context that is shifted; here its end ends the text
    "n_discard": (_L, _ANY, ""),
    "n_cache_reuse": (_L, _ANY, ""),
    "timings_per_token": (_L, _ANY, ""),
    "return_progress": (_L, _ANY, ""),
    "response_fields": (_L, _ANY, ""),  # llama.cpp ignores it on OpenAI's paths too
    "verbose": (_L, _ANY, ""),
    "sse_ping_interval": (_L, _ANY, ""),
    "backend_sampling": (_L, _ANY, ""),
    "preserved_tokens": (_L, _ANY, ""),
    "penalize_nl": (_L, _values(False), "a newline is a token like any other; use logit_bias"),
    "min_keep": (_L, _UP_TO_1, "the filters keep one token at least; use top_k"),
    "typical_p": (_L, _FROM_1, _FILTERS),
    "tfs_z": (_L, _FROM_1, _FILTERS),
    "top_n_sigma": (_L, _UP_TO_0, _FILTERS),
    "xtc_probability": (_L, _UP_TO_0, _FILTERS),
    "xtc_threshold": (_L, _ANY, ""),
    "dynatemp_range": (_L, _UP_TO_0, "the temperature stays the same; use temperature"),
    "dynatemp_exponent": (_L, _ANY, ""),
    "mirostat": (_L, _values(0), _FILTERS),
    "mirostat_tau": (_L, _ANY, ""),
    "mirostat_eta": (_L, _ANY, ""),
    "adaptive_target": (_L, _UP_TO_0, _FILTERS),
    "adaptive_decay": (_L, _ANY, ""),
    "dry_multiplier": (_L, _UP_TO_0, "this sampler is not built; use repetition_penalty"),
    "dry_base": (_L, _ANY, ""),
    "dry_allowed_length": (_L, _ANY, ""),
    "dry_penalty_last_n": (_L, _ANY, ""),
    "dry_sequence_breakers": (_L, _ANY, ""),
    "n_indent": (_L, _values(0), "use /completion or /infill, or write the indentation as a grammar"),
    "post_sampling_probs": (_L, _values(False), "log-probabilities are the model's own"),
    "t_max_predict_ms": (_L, _UP_TO_0, "use /completion or /infill, or max_tokens"),
    "t_max_prompt_ms": (_L, _UP_TO_0, "use truncate_prompt_tokens, or close the connection in time"),
    "lora": (_L, _ZERO_SCALES, _ADAPTERS),
    "image_data": (_L, _EMPTY, _TEXT_ONLY),
    "multimodal_data": (_L, _EMPTY, _TEXT_ONLY),
    "grammar_lazy": (_L, _values(False), _LAZY),
    "grammar_triggers": (_L, _EMPTY, _LAZY),
    "parse_tool_calls": (_L, _values(True), 'send tool_choice "none"'),
    "reasoning_control": (_L, _values(False), "thoughts end when the model ends them; use max_tokens"),
    "reasoning_budget_tokens": (_L, _values(-1), _BUDGET),
    "thinking_budget_tokens": (_L, _values(-1), _BUDGET),
    "reasoning_budget_message": (_L, _ANY, ""),
    "reasoning_budget_start_tag": (_L, _ANY, ""),
    "reasoning_budget_end_tag": (_L, _ANY, ""),
    "reasoning_budget_end_tags": (_L, _ANY, ""),
    "chat_format": (_L, _NONE, "it is the server's own; --tool-call-parser chooses"),
    "chat_parser": (_L, _NONE, "it is the server's own; --tool-call-parser chooses"),
    "generation_prompt": (_L, _NONE, "use chat_template_kwargs, or continue_final_message"),
    "speculative.n_min": (_L, _ANY, ""),  # drafts never change the text
    "speculative.p_min": (_L, _ANY, ""),
    "speculative.type": (_L, _ANY, ""),
    "speculative.ngram_size_n": (_L, _ANY, ""),
    "speculative.ngram_size_m": (_L, _ANY, ""),
    "speculative.ngram_min_hits": (_L, _ANY, ""),
    # SGLang's
    "rid": (_S, _ANY, ""),
    "extra_key": (_S, _ANY, ""),
    "stream_reasoning": (_S, _ANY, ""),
    "continuous_usage_stats": ((), _NONE, "put it into stream_options"),
    "stop_regex": (_S, _EMPTY, "use stop"),
    "return_hidden_states": (_S, _values(False), "hidden states are not sent"),
    "lora_path": (_S, _NONE, _ADAPTERS),
    "session_params": (_S, _EMPTY, "send the whole conversation; its beginning is cached"),
    "custom_logit_processor": (_S, _NONE, "no code of a request is ever run; use logit_bias or a grammar"),
    "custom_params": (_S, _EMPTY, "no code of a request is ever run"),
    "data_parallel_rank": (_S, _values(0), _ONE_SERVER),
    # Of clients and gateways
    "keep_alive": ((), _ANY, ""),
    "cache_control": ((), _ANY, ""),
    "extra_body": ((), _EMPTY, "its fields belong beside the others"),
    "options": ((), _EMPTY, "its fields belong beside the others"),
}  # fmt: skip

# Of a tool and its function. Anthropic's clients mark what is to be cached; here every prefix is.
UNUSED_IN_TOOLS: Unused = {
    "cache_control": ((), _ANY, ""),
    "defer_loading": (_V, _values(False), "all tools are told to the model at once"),
}


def refusal(name: str, value: object, table: Unused = UNUSED) -> str | None:
    """Why a value of an unused field is refused; None if it is accepted."""
    _, accepted, reason = table[name]
    if value is None or accepted.test(value):
        return None
    return f"{name}={shown(value)} is refused: {reason}"


def suggestions() -> list[str]:
    """The names that a hint may give for an unknown one: no hint leads to a field that is refused."""
    accepted = (name for name, row in UNUSED.items() if row[1] is _ANY and OPENAI in row[0])
    return [*HONOURED, *RENAMED, *accepted]


def shown(value: object) -> str:
    """A value as JSON, cut after 80 characters."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        text = "…"
    return text if len(text) <= 80 else text[:79] + "…"
