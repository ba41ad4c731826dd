from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
import re
from typing import Any

import numpy as np
import pytest

from outrider.decoding.sampling.params import RequestOutputKind, SamplingParams, arity
from outrider.decoding.sampling.structured import GuidedDecodingParams, StructuredOutputsParams
from outrider.errors import ConfigError


def test_the_defaults_are_those_of_vllm() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (1, 1.0, 1.0, 0, 0.0)
    assert (params.max_tokens, params.min_tokens, params.seed, params.ignore_eos) == (16, 0, None, False)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.0, 0.0, 1.0)
    assert params.stop_strings == ()
    assert params.stop_ids([7]) == {7}
    assert params.skip_special_tokens
    assert not params.include_stop_str_in_output


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("max_completion_tokens", "max_tokens"),
        ("max_output_tokens", "max_tokens"),
        ("max_new_tokens", "max_tokens"),
        ("num_predict", "max_tokens"),
        ("n_predict", "max_tokens"),
        ("repeat_penalty", "repetition_penalty"),
        ("num_return_sequences", "n"),
        ("stop_sequences", "stop"),
        ("temp", "temperature"),
    ],
)
def test_names_of_other_systems(given: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"has no argument '{given}': use '{meant}'\Z"):
        SamplingParams(**{given: 1})  # type: ignore[arg-type]
    assert SamplingParams(**{given: None}) == SamplingParams()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "meant"), [("temprature", "temperature"), ("max_token", "max_tokens"), ("topk", "top_k")]
)
def test_an_unknown_argument_names_the_nearest_one(given: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"no argument '{given}' \(did you mean '{meant}'\?\)"):
        SamplingParams(**{given: 1})  # type: ignore[arg-type]


BAD: list[dict[str, Any]] = [
    {"n": 0},
    {"n": 1.5},
    {"n": True},
    {"presence_penalty": 2.1},
    {"frequency_penalty": -2.1},
    {"repetition_penalty": 0.0},
    {"repetition_penalty": math.inf},
    {"temperature": math.nan},
    {"temperature": -0.1},
    {"temperature": math.inf},
    {"temperature": "hot"},
    {"temperature": "1"},
    {"temperature": None},
    {"top_p": 0.0},
    {"top_p": 1.01},
    {"top_k": -2},
    {"top_k": 0.5},
    {"min_p": -0.1},
    {"min_p": 1.1},
    {"seed": -(2**63) - 1},
    {"seed": 2**64},
    {"seed": 1.0},
    {"stop": ""},
    {"stop": ["a", ""]},
    {"stop": [3]},
    {"stop": 3},
    {"stop_token_ids": [-1]},
    {"stop_token_ids": 5},
    {"stop_token_ids": ["a"]},
    {"max_tokens": 0},
    {"max_tokens": 2.0},
    {"min_tokens": -1},
    {"min_tokens": 17},
    {"logit_bias": {1: math.nan}},
    {"logit_bias": {-1: 1.0}},
    {"logit_bias": {"1": 1.0}},
    {"logit_bias": [1]},
    {"allowed_token_ids": []},
    {"allowed_token_ids": [-3]},
    {"ignore_eos": 1},
    {"logprobs": -2},
    {"logprobs": True},
    {"prompt_logprobs": 1.5},
    {"bad_words": [""]},
    {"bad_words": [1]},
    {"logits_processors": [1]},
    {"logits_processors": len},
    {"logits_processors": [lambda logits: logits]},
    {"logits_processors": [lambda a, b, c, d: d]},
    {"logits_processors": [lambda a, b, *, c: b]},
    {"detokenize": 0},
    {"stop": "x", "detokenize": False},
    {"skip_special_tokens": None},
    {"spaces_between_special_tokens": "no"},
    {"logprob_token_ids": [-1]},
    {"logprob_token_ids": 5},
    {"logprob_token_ids": list(range(129))},
    {"logprob_token_ids": [3, 4], "logprobs": 3},
    {"truncation_side": "both"},
    {"truncation_side": 1},
    {"truncate_prompt_tokens": 0},
    {"truncate_prompt_tokens": -2},
    {"structured_outputs": {}},
    {"structured_outputs": "x"},
    {"guided_decoding": 7},
    {"json_schema": "{"},
    {"json_schema": "7"},
    {"json_schema": {"a": {1, 2}}},
    {"regex": ""},
    {"regex": 3},
    {"choice": []},
    {"choice": "ab"},
    {"choice": ["a", 2]},
    {"grammar": ""},
    {"regex": "a", "grammar": "b"},
    {"structured_outputs": {"json_object": True}, "choice": ["a"]},
]


@pytest.mark.parametrize("arguments", BAD, ids=lambda found: re.sub(r" at 0x\w+", "", str(found)))
def test_a_bad_value_is_one_clear_line(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        SamplingParams(**arguments)
    assert "\n" not in str(caught.value)
    name = next(iter(arguments))
    words = {"json_schema": "JSON schema", "structured_outputs": "structured"}.get(name, name)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"best_of": 3}, "cumulative_logprob"),
        ({"use_beam_search": True}, "beam search"),
        ({"length_penalty": 0.5}, "beam search"),
        ({"beam_width": 4}, "beam search"),
        ({"flat_logprobs": True}, "mappings"),
        ({"extra_args": {"x": 1}}, "plug-ins"),
    ],
)
def test_what_vllm_has_and_this_has_not_is_refused_with_the_reason(
    arguments: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=rf"{next(iter(arguments))}=.* cannot be honoured: .*{reason}"):
        SamplingParams(**arguments)


def test_negative_seeds_are_the_unsigned_ones_of_the_same_bits() -> None:
    assert SamplingParams(seed=-1).seed is None
    assert SamplingParams(seed=-2).seed == 2**64 - 2
    assert SamplingParams(seed=-(2**63)).seed == 2**63


def test_values_that_ask_for_nothing_are_let_through() -> None:
    neutral: dict[str, Any] = {"best_of": None, "use_beam_search": False, "length_penalty": 1.0}
    assert SamplingParams(**neutral) == SamplingParams()
    assert SamplingParams(best_of=1, skip_clone=True, do_sample=True) == SamplingParams()  # type: ignore[call-arg]
    with pytest.raises(ConfigError):
        SamplingParams(use_beam_search=0)  # type: ignore[call-arg]


def test_structured_output_by_any_of_its_names() -> None:
    schema = {"type": "object"}
    same = [
        SamplingParams(json_schema=schema),
        SamplingParams(json_schema=json.dumps(schema)),
        SamplingParams(structured_outputs=StructuredOutputsParams(json=schema)),
        SamplingParams(structured_outputs={"json": schema}),
        SamplingParams(guided_decoding=GuidedDecodingParams(json=schema, backend="auto")),  # type: ignore[call-arg]
        SamplingParams(json_schema=schema, structured_outputs={"json": schema}),
    ]

    class Model:
        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            return schema

    same.append(SamplingParams(json_schema=Model))
    assert {params.structured for params in same} == {StructuredOutputsParams(json=schema)}
    assert SamplingParams().structured is None
    for name, value in (("regex", "a+"), ("grammar", "start: A"), ("choice", ("a", "b"))):
        form = SamplingParams(**{name: value}).structured  # type: ignore[arg-type]
        assert getattr(form, name) == value
    choices = SamplingParams(choice=(c for c in "ab"))
    assert choices.structured == choices.structured == StructuredOutputsParams(choice=["a", "b"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "none is given"),
        ({"json": "{}", "regex": "a"}, "json and regex"),
        ({"jsn": "{}"}, "did you mean 'json'"),
        ({"json": "{}", "backend": "xgrammar"}, "llguidance"),
        ({"structural_tag": "{}"}, "grammar"),
        ({"json": "{}", "disable_any_whitespace": 1}, "disable_any_whitespace"),
        ({"json_object": "yes"}, "json_object"),
        ({"json": "{}", "whitespace_pattern": 4}, "whitespace_pattern"),
    ],
)
def test_bad_structured_output(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        StructuredOutputsParams(**arguments)


def test_a_processor_is_called_by_its_arguments() -> None:
    class Both:
        def __call__(self, prompt: Any, output: Any, logits: Any, extra: int = 0) -> Any:
            return logits

    assert arity(Both()) == 3
    assert arity(lambda output, logits: logits) == 2
    assert arity(lambda *all: all[-1]) == 2
    assert arity(np.add) == 2


def test_values_are_made_plain() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        top_k=np.int64(4),  # type: ignore[arg-type]
        stop="end",
        stop_token_ids=[3, 4],
        logit_bias={np.int64(5): 1},  # type: ignore[dict-item]
        allowed_token_ids=range(3),
        seed=-1,
        max_tokens=None,
    )
    assert type(params.temperature) is float
    assert type(params.top_k) is int
    assert params.stop_strings == ("end",)
    assert params.seed is None
    assert params.stop_ids([9]) == {3, 4, 9}
    assert params.logit_bias == {5: 1.0}
    assert params.allowed_token_ids == (0, 1, 2)


def test_ignore_eos_leaves_the_other_stop_ids() -> None:
    assert SamplingParams(stop_token_ids=[3], ignore_eos=True).stop_ids([9]) == {3}


def test_params_can_be_copied() -> None:
    params = SamplingParams(temperature=0.3, stop=["a"], logit_bias={1: 2.0})
    for twin in (
        *(copy.copy(params), copy.deepcopy(params), pickle.loads(pickle.dumps(params))),
        *(dataclasses.replace(params), params.clone()),
    ):
        assert twin == params
        assert twin is not params
    assert dataclasses.replace(params, top_k=3).top_k == 3
    assert dataclasses.replace(params).stop_strings == ("a",)


def test_a_clone_is_independent() -> None:
    params = SamplingParams(temperature=0.3, logit_bias={1: 2.0})
    twin = params.clone()
    twin.temperature = 0.9
    assert twin.logit_bias is not None
    assert isinstance(twin.logit_bias, dict)
    twin.logit_bias[5] = 1.0
    assert params == SamplingParams(temperature=0.3, logit_bias={1: 2.0})


def test_an_assignment_is_checked() -> None:
    params = SamplingParams()
    given: dict[str, Any] = {"temperature": 1, "stop": "end", "max_tokens": None, "top_k": np.int64(4)}
    for parameter, assigned in given.items():
        setattr(params, parameter, assigned)
    assert (params.temperature, params.stop, params.max_tokens) == (1.0, ("end",), None)
    assert type(params.temperature) is float
    assert type(params.top_k) is int
    for name, value, words in (
        ("temperature", -1.0, "temperature must be at least 0"),
        ("max_new_tokens", 5, "use 'max_tokens'"),
        ("max_token", 5, "did you mean 'max_tokens'"),
        ("best_of", 3, "cumulative_logprob"),
        ("detokenize", False, "stop needs detokenize"),
        ("output_kind", "delta", "RequestOutputKind.DELTA"),
    ):
        before = params.clone()
        with pytest.raises(ConfigError, match=words):
            setattr(params, name, value)
        assert params == before
    params.best_of = None
    assert not hasattr(params, "best_of")


def test_parameters_from_optional_ones() -> None:
    params = SamplingParams.from_optional(temperature=None, top_p=0.5, stop=None, max_tokens=None, n=None)
    assert params == SamplingParams(top_p=0.5, max_tokens=None)
    assert SamplingParams.from_optional() == SamplingParams()
    with pytest.raises(ConfigError, match="did you mean 'temperature'"):
        SamplingParams.from_optional(temprature=None, temperatur=1)


@pytest.mark.parametrize(
    ("config", "ignore_eos", "expected"),
    [
        ({"eos_token_id": [2, 7, 9]}, False, (3, 7, 9)),
        ({"eos_token_id": 7}, False, (3, 7)),
        ({"eos_token_id": 2}, False, (3,)),
        ({}, False, (3,)),
        ({"eos_token_id": [2, 7]}, True, (3,)),
    ],
)
def test_ids_of_a_generation_config(config: Any, ignore_eos: bool, expected: tuple[int, ...]) -> None:
    params = SamplingParams(stop_token_ids=[3], ignore_eos=ignore_eos)
    params.update_from_generation_config(config, 2)
    assert params.stop_token_ids == expected


@pytest.mark.parametrize(
    ("name", "own"),
    [
        *(("max_new_tokens", "max_tokens"), ("n_predict", "max_tokens"), ("num_return_sequences", "n")),
        *(("repeat_penalty", "repetition_penalty"), ("stop_sequences", "stop"), ("temp", "temperature")),
        *(("guided_regex", "regex"), ("top_logprobs", "logprobs"), ("eos_token_id", "stop_token_ids")),
    ],
)
def test_names_of_other_libraries(name: str, own: str) -> None:
    with pytest.raises(ConfigError, match=f"no argument '{name}': use '{own}'"):
        SamplingParams(**{name: 1})  # type: ignore[arg-type]


def test_output_kinds() -> None:
    assert SamplingParams().output_kind is RequestOutputKind.CUMULATIVE
    for value in (RequestOutputKind.DELTA, 1):
        assert SamplingParams(output_kind=value).output_kind is RequestOutputKind.DELTA
    with pytest.raises(ConfigError, match=r"RequestOutputKind\.FINAL_ONLY, not 7"):
        SamplingParams(output_kind=7)
