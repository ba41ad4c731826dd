"""The table of known request fields: complete, the same as the models and the docs, and honest."""

from __future__ import annotations

import json
import typing
from typing import Any

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_params
from pydantic import ValidationError

from outrider.server.http.protocol import ChatRequest, CompletionRequest, Tool
from outrider.server.http.request_fields import HONOURED, LLAMA, OPENAI, RENAMED, UNUSED, VLLM, suggestions
from tests.scripts.write_request_fields import DOCUMENT, written

# The names of the fields of vLLM 0.33's two request types, and of those before that are still sent.
VLLM_BOTH = (
    *("model", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n", "presence_penalty", "seed"),
    *("stop", "stream", "stream_options", "temperature", "top_p", "user", "use_beam_search", "top_k"),
    *("min_p", "repetition_penalty", "watermarking", "length_penalty", "stop_token_ids", "ignore_eos"),
    *("include_stop_str_in_output", "min_tokens", "skip_special_tokens", "spaces_between_special_tokens"),
    *("truncate_prompt_tokens", "truncation_side", "allowed_token_ids", "prompt_logprobs"),
    *("logprob_token_ids", "bad_words", "echo", "add_special_tokens", "response_format"),
    *("structured_outputs", "priority", "request_id", "session_id", "return_tokens_as_token_ids"),
    *("return_token_ids", "routed_experts_prompt_start", "return_token_offsets", "return_mm_kwargs"),
    *("cache_salt", "kv_transfer_params", "ec_transfer_params", "vllm_xargs", "repetition_detection"),
    *("thinking_token_budget", "stream_interval"),
    *("best_of", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structural_tag"),
    *("guided_decoding_backend", "guided_whitespace_pattern", "logits_processors", "early_stopping"),
)
VLLM_COMPLETIONS = ("prompt", "suffix", "prompt_embeds")
VLLM_CHAT = (
    *("messages", "top_logprobs", "max_completion_tokens", "tools", "tool_choice", "reasoning_effort"),
    *("include_reasoning", "parallel_tool_calls", "add_generation_prompt", "continue_final_message"),
    *("documents", "chat_template", "chat_template_kwargs", "media_io_kwargs", "mm_processor_kwargs"),
    *("return_prompt_text",),
)
# Those of llama.cpp's server, today's and older ones.
LLAMA_CPP = (
    *("prompt", "verbose", "timings_per_token", "stream", "stream_options", "cache_prompt", "return_tokens"),
    *("return_progress", "sse_ping_interval", "n_predict", "max_tokens", "n_indent", "n_keep", "n_discard"),
    *("n_cmpl", "n", "n_cache_reuse", "t_max_predict_ms", "t_max_prompt_ms", "response_fields", "top_k"),
    *("top_p", "min_p", "top_n_sigma", "xtc_probability", "xtc_threshold", "typical_p", "temperature"),
    *("dynatemp_range", "dynatemp_exponent", "repeat_last_n", "penalty_last_n", "repeat_penalty"),
    *("frequency_penalty", "presence_penalty", "dry_multiplier", "dry_base", "dry_allowed_length"),
    *("dry_penalty_last_n", "dry_sequence_breakers", "mirostat", "mirostat_tau", "mirostat_eta"),
    *("adaptive_target", "adaptive_decay", "seed", "n_probs", "logprobs", "min_keep", "backend_sampling"),
    *("post_sampling_probs", "lora", "json_schema", "grammar", "grammar_lazy", "grammar_triggers"),
    *("preserved_tokens", "chat_format", "reasoning_format", "generation_prompt", "parse_tool_calls"),
    *("chat_parser", "echo", "reasoning_control", "reasoning_budget_tokens", "reasoning_budget_start_tag"),
    *("reasoning_budget_end_tag", "reasoning_budget_end_tags", "reasoning_budget_message", "logit_bias"),
    *("ignore_eos", "stop", "samplers", "id_slot", "slot_id", "image_data", "tfs_z", "penalize_nl"),
    *("speculative.n_max", "speculative.n_min", "speculative.p_min", "speculative.type"),
    *("max_completion_tokens", "tools", "tool_choice", "parallel_tool_calls", "response_format"),
    *("chat_template_kwargs", "add_generation_prompt", "continue_final_message", "messages", "model"),
)
TABLES = {**HONOURED, **RENAMED, **UNUSED}


def accepts(model: Any, /, **fields: Any) -> Any:
    messages = [{"role": "user", "content": "a"}]
    needed: Any = {"prompt": "a"} if model is CompletionRequest else {"messages": messages}
    return model.model_validate({**needed, **fields})


def refusal(model: Any, /, **fields: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        accepts(model, **fields)
    return str(caught.value.errors()[0]["msg"])


def test_honoured_are_the_fields_of_the_models() -> None:
    assert set(HONOURED) == {*ChatRequest.model_fields, *CompletionRequest.model_fields}
    assert len(TABLES) == len(HONOURED) + len(RENAMED) + len(UNUSED), "a field is in two tables"
    assert {new for _, new, _ in RENAMED.values()} <= set(HONOURED)


def test_every_field_of_others_is_known() -> None:
    openai_names = {
        *typing.get_type_hints(chat_params.CompletionCreateParamsBase),
        *typing.get_type_hints(completion_create_params.CompletionCreateParamsBase),
    }
    assert len(openai_names) > 30
    for names, whose in (
        (openai_names, OPENAI),
        ({*VLLM_BOTH, *VLLM_COMPLETIONS, *VLLM_CHAT}, VLLM),
        (LLAMA_CPP, LLAMA),
    ):
        assert sorted(set(names) - set(TABLES)) == []
        owners: dict[str, Any] = {name: TABLES[name][0] for name in names}
        assert [name for name in names if whose not in owners[name]] == []


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest])
def test_null_is_the_same_as_nothing(model: Any) -> None:
    assert accepts(model, **dict.fromkeys({*TABLES} - {"prompt", "messages"})) == accepts(model)


def test_the_documents_tables_are_these() -> None:
    text = DOCUMENT.read_text("utf-8")
    assert written(text) == text, "run: python tests/scripts/write_request_fields.py"
    assert all(f"| `{name}` |" in text for name in TABLES)


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest])
@pytest.mark.parametrize("name", UNUSED)
def test_a_value_of_an_unused_field_is_accepted_or_refused_with_a_way_out(model: Any, name: str) -> None:
    _, accepted, reason = UNUSED[name]
    assert bool(reason) == (accepted.words != "any")
    odd: dict[str, Any] = {"an": ["odd", True, None]}
    if reason:
        message = refusal(model, **{name: odd})
        assert message.startswith(f'{name}={{"an": ["odd", true, null]}} is refused: ')
        assert message.endswith(reason)
    else:
        assert accepts(model, **{name: odd}) == accepts(model)


NEUTRAL: list[dict[str, Any]] = [
    {"store": True, "metadata": {}, "user": "me", "service_tier": "flex", "safety_identifier": "x"},
    {"function_call": "none", "functions": [], "modalities": ["text"], "verbosity": "medium"},
    {"mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "typical_p": 1, "tfs_z": 1.0, "min_keep": 0},
    {"top_n_sigma": -1.0, "xtc_probability": 0.0, "xtc_threshold": 0.1, "dynatemp_range": 0.0, "n_indent": 0},
    {"dry_multiplier": 0.0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1},
    {"dry_sequence_breakers": ["\n"], "dynatemp_exponent": 1.0, "id_slot": -1, "n_keep": 0, "n_discard": 0},
    {"timings_per_token": True, "return_progress": True, "post_sampling_probs": False, "lora": []},
    {"lora": [{"id": 0, "scale": 0.0}], "image_data": [], "t_max_predict_ms": -1, "response_fields": []},
    {"backend_sampling": False, "reasoning_format": "auto", "parse_tool_calls": True, "cache_prompt": True},
    {"samplers": "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"},
    {"samplers": ["penalties", "top_k", "typ_p", "top_p", "min_p", "temperature"]},
    {"samplers": "edskypmxt", "repeat_last_n": 64, "penalty_last_n": -1, "grammar": "", "n_probs": 0},
    {"samplers": [], "speculative.n_min": 0, "speculative.p_min": 0.75, "priority": 0, "length_penalty": 1},
    {"thinking_token_budget": -1, "vllm_xargs": {}, "kv_transfer_params": {}},
    {"watermarking": False, "stream_interval": 4, "session_id": "s", "request_id": "r", "keep_alive": "5m"},
]


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest])
@pytest.mark.parametrize("fields", NEUTRAL)
def test_what_changes_nothing_is_accepted(model: Any, fields: dict[str, Any]) -> None:
    assert accepts(model, **fields) == accepts(model)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mirostat": 2}, "mirostat=2 is refused: this sampler is not built; use top_p, top_k or min_p"),
        ({"mirostat": False}, "mirostat=false is refused"),
        ({"typical_p": 0.9}, "typical_p=0.9 is refused"),
        ({"functions": [{"name": "f"}]}, 'functions=[{"name": "f"}] is refused: use tools'),
        ({"watermarking": True}, "watermarking=true is refused"),
        ({"lora": [{"id": 0, "scale": 1.0}]}, "merge them into the model"),
        ({"verbosity": "é" * 200}, "…"),
        ({"extra_body": {"top_k": 1}}, "beside the others"),
        ({"enable_thinking": "no"}, 'true or false, not "no"'),
        ({"thinking": {"type": "off"}}, 'enabled, adaptive, disabled, not {"type": "off"}'),
        ({"thinking": True}, "one of the types"),
        ({"thinking": {"type": [1]}}, "one of the types"),
        ({"thinking": {"type": "enabled"}, "enable_thinking": False}, "differ; give one"),
        ({"repeat_last_n": 64, "repeat_penalty": 1.1}, "repetition_penalty looks at all tokens"),
        ({"repeat_last_n": -2}, "at least -1"),
        ({"repeat_last_n": True}, "whole number"),
        ({"n_probs": 1.5}, "whole number"),
        ({"cache_prompt": "no"}, 'true or false, not "no"'),
        ({"samplers": ["top_p", "top_k"]}, "in this order are refused"),
        ({"samplers": ["infill"]}, '"infill", which is none of'),
        ({"samplers": [1]}, "1, which is none of"),
        ({"samplers": 5}, "must be a list of names"),
        ({"n_predict": 5, "max_tokens": 6}, "n_predict and max_tokens differ"),
        ({"repeat_penalty": 1.1, "repetition_penalty": 1.2}, "differ; give one"),
        ({"max_toknes": 0}, "did you mean 'max_tokens'"),
        ({"foo": 1}, "unknown field 'foo'"),
    ],
)
def test_what_would_change_something_is_refused(fields: dict[str, Any], message: str) -> None:
    for model in (ChatRequest, CompletionRequest):
        found = refusal(model, **fields)
        assert message in found
        assert "\n" not in found
        assert len(found) < 250


def test_no_hint_at_a_name_that_is_refused() -> None:
    assert not {"mirostat", "audio", "prompt_embeds"} & set(suggestions())
    assert "did you mean" not in refusal(ChatRequest, mirostatic=1)


@pytest.mark.parametrize("on", [True, False])
def test_the_switch_of_thoughts(on: bool) -> None:
    kind = {"type": "enabled", "budget_tokens": 9} if on else {"type": "disabled"}
    for fields in ({"enable_thinking": on}, {"thinking": kind}, {"thinking": kind, "enable_thinking": on}):
        for more in (None, {}, {"x": 1}, {"enable_thinking": on}):
            found = accepts(ChatRequest, **fields, chat_template_kwargs=more)
            assert found.chat_template_kwargs == {"enable_thinking": on, **(more or {})}
        other = {"chat_template_kwargs": {"enable_thinking": not on}}
        assert "another enable_thinking" in refusal(ChatRequest, **fields, **other)
        if on:
            assert "a field of /v1/chat/completions" in refusal(CompletionRequest, **fields)
        else:
            assert accepts(CompletionRequest, **fields) == accepts(CompletionRequest)


def test_fields_of_the_other_path() -> None:
    assert accepts(CompletionRequest, tools=[]) == accepts(CompletionRequest)
    assert "a field of /v1/chat/completions" in refusal(CompletionRequest, tools=[{"type": "function"}])
    assert "a field of /v1/completions" in refusal(ChatRequest, prompt="a")


def test_names_of_llama_cpp_and_others() -> None:
    body = accepts(
        CompletionRequest,
        **{"n_predict": 7, "repeat_penalty": 1.1, "n_cmpl": 2, "n_probs": 3, "return_tokens": True},
    )
    assert (body.max_tokens, body.repetition_penalty, body.n, body.logprobs) == (7, 1.1, 2, 3)
    assert body.return_token_ids is True
    assert accepts(CompletionRequest, max_completion_tokens=9).max_tokens == 9
    assert accepts(CompletionRequest, n_predict=9, max_tokens=9).max_tokens == 9
    chat = accepts(ChatRequest, n_probs=2, ebnf="root ::= [a]", no_stop_trim=True, max_new_tokens=4)
    assert (chat.logprobs, chat.top_logprobs, chat.grammar) == (True, 2, "root ::= [a]")
    assert (chat.include_stop_str_in_output, chat.max_tokens) == (True, 4)
    assert accepts(ChatRequest, **{"speculative.n_max": 0}).speculative is False
    assert accepts(ChatRequest, **{"speculative.n_max": 3}).speculative.num_speculative_tokens == 3


def test_samplers_that_are_left_out_are_off() -> None:
    body = accepts(ChatRequest, samplers=["top_k", "temperature"], top_k=5, top_p=0.5, repeat_penalty=1.3)
    assert (body.top_k, body.top_p, body.min_p, body.temperature) == (5, 1.0, 0.0, None)
    assert (body.repetition_penalty, body.presence_penalty, body.frequency_penalty) == (1.0, 0.0, 0.0)
    own = accepts(ChatRequest, samplers="penalties;temperature;min_p;top_k;top_p")
    assert own == accepts(ChatRequest)
    assert accepts(ChatRequest, samplers=["top-k", "temp"]).top_p == 1.0
    assert accepts(ChatRequest, repeat_last_n=0, presence_penalty=1.0).presence_penalty == 0.0


def test_a_prompt_that_is_not_to_be_cached_shares_with_nobody() -> None:
    salts = {accepts(ChatRequest, cache_prompt=False, cache_salt="x").cache_salt for _ in range(3)}
    assert len(salts) == 3
    assert "x" not in salts


def test_whole_floats_count_as_integers() -> None:
    text = '{"prompt": [[1.0, 2]], "max_tokens": 16.0, "n": 2.0, "top_k": 4e1, "seed": -7.0, "n_predict": 16}'
    body = CompletionRequest.model_validate(json.loads(text))
    assert (body.prompt, body.max_tokens, body.n, body.top_k, body.seed) == ([[1, 2]], 16, 2, 40, -7)
    assert accepts(CompletionRequest, stop_token_ids=[3.0]).stop_token_ids == [3]
    for wrong in (1.5, "16", True, 1e300, float("inf"), float("nan")):
        assert "integer" in refusal(CompletionRequest, max_tokens=wrong)
    deep: Any = 1.0
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(ValidationError):
        accepts(CompletionRequest, prompt=deep)


def test_marks_of_what_to_cache_are_accepted() -> None:
    mark = {"type": "ephemeral"}
    tool = {
        "type": "function",
        "cache_control": mark,
        "function": {"name": "f", "cache_control": mark, "parameters": {}},
    }
    body = accepts(
        ChatRequest,
        tools=[tool],
        messages=[
            {
                "role": "user",
                "cache_control": mark,
                "content": [{"type": "text", "text": "a", "cache_control": mark}],
            }
        ],
    )
    plain = {"type": "function", "function": {"name": "f", "parameters": {}}}
    assert body.tools == [Tool.model_validate(plain)]


def test_whether_thoughts_are_parted() -> None:
    assert accepts(ChatRequest, separate_reasoning=False).reasoning_format == "none"
    assert accepts(ChatRequest, separate_reasoning=True).reasoning_format is None
    assert "differ" in refusal(ChatRequest, separate_reasoning=False, reasoning_format="auto")
    assert accepts(CompletionRequest, separate_reasoning=False).prompt
