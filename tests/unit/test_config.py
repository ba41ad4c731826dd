"""Every configuration name of vLLM is accepted or refused by name; none is silently ignored."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.config import foreign
from outrider.config.engine import EngineConfig, parse_engine
from outrider.config.speculative import (
    OLD_SPECULATIVE_NAMES,
    VERIFICATIONS,
    AutoConfig,
    DraftModelConfig,
    NgramConfig,
    NoneConfig,
    SpeculativeConfig,
    SuffixConfig,
    parse_speculative,
)
from outrider.decoding.verifiers.base import VERIFIERS
from outrider.errors import ConfigError, OutriderError


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, AutoConfig()),
        ({}, AutoConfig()),
        ({"num_speculative_tokens": 3}, AutoConfig(None, 3)),
        ("auto", AutoConfig()),
        ("suffix", SuffixConfig()),
        ({"method": "suffix", "suffix_decoding_max_tree_depth": 8}, SuffixConfig(16, 8)),
        ("none", NoneConfig()),
        ({"method": "none", "model": "d", "num_speculative_tokens": 5}, NoneConfig()),
        ("ngram", NgramConfig()),
        ({"method": "ngram"}, NgramConfig(5, 5, 5)),
        ({"method": "ngram", "prompt_lookup_max": 4}, NgramConfig(5, 4, 4)),
        ({"method": "ngram", "prompt_lookup_min": 2}, NgramConfig(5, 2, 2)),
        ({"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}, NgramConfig(5, 4, 2)),
        ({"method": "ngram", "prompt_lookup_min": None, "prompt_lookup_max": None}, NgramConfig(5, 5, 5)),
        ({"model": "[ngram]", "num_speculative_tokens": 3}, NgramConfig(3, 5, 5)),
        ({"model": "d.gguf"}, AutoConfig("d.gguf")),
        ({"model": "d.gguf", "num_speculative_tokens": 5}, AutoConfig("d.gguf", 5)),
        ({"method": "draft_model", "model": "d", "num_speculative_tokens": 2}, DraftModelConfig("d", 2)),
        ({"model": "o/d", "revision": "main", "max_model_len": 64}, AutoConfig("o/d", 16, 64, "main")),
        ('{"method": "ngram", "num_speculative_tokens": 7}', NgramConfig(7)),
        ({"model": "d", "draft_tensor_parallel_size": 1, "quantization": None}, AutoConfig("d")),
        (DraftModelConfig("d", 4), DraftModelConfig("d", 4)),
    ],
)
def test_todays_names(value: Any, expected: object) -> None:
    assert parse_speculative(value) == expected


def test_old_names_mean_the_same() -> None:
    assert parse_speculative(speculative_model="d", num_speculative_tokens=3) == AutoConfig("d", 3)
    old = parse_speculative(
        speculative_model="[ngram]",
        num_speculative_tokens=4,
        ngram_prompt_lookup_max=3,
        ngram_prompt_lookup_min=1,
        speculative_draft_tensor_parallel_size=1,
    )
    assert old == NgramConfig(4, 3, 1)
    assert parse_speculative(speculative_model=None, num_speculative_tokens=None) == AutoConfig()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"method": "ngarm"}, ["'ngarm'", "did you mean 'ngram'", "draft_model"]),
        ({"method": "eagle", "model": "m"}, ["'eagle'", "not built", "'eagle3'"]),
        ({"method": 3}, ["3", "not available"]),
        ({"modle": "d"}, ["'modle'", "did you mean 'model'"]),
        ({"modle": None}, ["'modle'", "did you mean 'model'"]),
        ({"method": "draft_model"}, ["draft_model", "model"]),
        ({"method": "ngram", "model": "d"}, ["model='d'", "'ngram'"]),
        ({"model": "d", "prompt_lookup_max": 3}, ["prompt_lookup_max", "'auto'"]),
        ({"model": "d", "draft_tensor_parallel_size": 2}, ["draft_tensor_parallel_size=2", "one process"]),
        ({"model": "d", "draft_tensor_parallel_size": True}, ["draft_tensor_parallel_size=True"]),
        ({"model": "d", "quantization": "bitsandbytes"}, ["quantization='bitsandbytes'", "file"]),
        ({"model": "d", "draft_sample_method": "gredy"}, ["draft_sample_method", "did you mean 'greedy'"]),
        ({"method": "ngram", "draft_sample_method": "probabilistic"}, ["draft_sample_method", "looks"]),
        (
            {"model": "d", "rejection_sample_method": "synthetic"},
            ["rejection_sample_method", "block"],
        ),
        ({"model": "d", "rejection_sample_method": []}, ["rejection_sample_method=[]", "standard, block"]),
        (
            {"model": "d", "acceptance_method": "typical_acceptance_sampler"},
            ["only exact rules"],
        ),
        (
            {"model": "d", "rejection_sample_method": "block", "verification": "rejection"},
            ["rejection_sample_method='block'", "verification='rejection'", "different"],
        ),
        ({"method": "ngram", "verification": "bloc"}, ["verification", "did you mean 'block'"]),
        ({"method": "ngram", "verification": 1}, ["verification", "coupled, rejection, block"]),
        ({"method": "ngram", "verifcation": "block"}, ["did you mean 'verification'"]),
        (
            {"method": "ngram", "suffix_decoding_max_tree_depth": 24},
            ["suffix_decoding_max_tree_depth", "ngram"],
        ),
        ({"method": "ngram", "num_speculative_tokens": 0}, ["num_speculative_tokens", "0"]),
        ({"method": "ngram", "num_speculative_tokens": -2}, ["num_speculative_tokens", "-2"]),
        ({"method": "ngram", "num_speculative_tokens": 10**6}, ["num_speculative_tokens", "at most"]),
        ({"method": "ngram", "num_speculative_tokens": True}, ["num_speculative_tokens", "True"]),
        ({"method": "ngram", "num_speculative_tokens": math.nan}, ["num_speculative_tokens", "NaN"]),
        ({"method": "ngram", "num_speculative_tokens": "5"}, ["num_speculative_tokens", "'5'"]),
        ({"method": "ngram", "prompt_lookup_max": 0}, ["prompt_lookup_max", "0"]),
        ({"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 2}, ["larger"]),
        ({"model": ""}, ["model"]),
        ({"model": 7}, ["model", "7"]),
        ('{"method": ', ["not JSON"]),
        (7, ["mapping", "int"]),
        ([1], ["mapping", "list"]),
    ],
)
def test_refused_by_name_in_one_line(value: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_speculative(value)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("value", "rule", "draws"),
    [
        ({"model": "d"}, "coupled", None),
        ({"model": "d", "verification": None}, "coupled", None),
        ({"model": "d", "verification": "block"}, "block", None),
        ({"model": "d", "rejection_sample_method": "standard"}, "rejection", None),
        ({"model": "d", "rejection_sample_method": "block"}, "block", None),
        ({"model": "d", "rejection_sample_method": None, "verification": "rejection"}, "rejection", None),
        (
            {"model": "d", "rejection_sample_method": "standard", "verification": "rejection"},
            "rejection",
            None,
        ),
        ({"model": "d", "acceptance_method": "rejection_sampler"}, "rejection", None),
        ({"model": "d", "draft_sample_method": "greedy"}, "coupled", "greedy"),
        (
            {"model": "d", "draft_sample_method": "probabilistic", "verification": "block"},
            "block",
            "probabilistic",
        ),
    ],
)
def test_the_rule_and_its_names(value: dict[str, Any], rule: str, draws: str | None) -> None:
    assert parse_speculative(value) == AutoConfig("d", verification=rule, draft_sample_method=draws)
    fixed = parse_speculative(value | {"method": "draft_model"})
    assert fixed == DraftModelConfig("d", verification=rule, draft_sample_method=draws)
    if draws is None:
        as_ngram = {k: v for k, v in value.items() if k != "model"} | {"method": "ngram"}
        assert parse_speculative(as_ngram) == NgramConfig(verification=rule)


def test_every_rule_that_is_offered_is_built() -> None:
    assert set(VERIFICATIONS) == set(VERIFIERS)


def test_a_ready_config_is_checked_too() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        parse_speculative(NgramConfig(0))


def test_old_and_new_names_do_not_mix() -> None:
    with pytest.raises(ConfigError, match="not both"):
        parse_speculative({"method": "ngram"}, speculative_model="d")
    with pytest.raises(ConfigError, match="did you mean 'speculative_model'"):
        parse_speculative(speculative_modle="d")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_KEYS = st.sampled_from(
    ["method", "model", "num_speculative_tokens", "prompt_lookup_max", "max_model_len", "quantization"]
)


@given(
    st.dictionaries(
        _KEYS | st.text(max_size=6), _JSON | st.sampled_from(["ngram", "draft_model"]), max_size=5
    )
)
def test_anything_is_a_config_or_one_clear_line(value: dict[str, Any]) -> None:
    for form in (value, json.dumps(value)):
        try:
            outcome: object = parse_speculative(form)
        except OutriderError as e:
            outcome = str(e)
        if isinstance(outcome, str):
            assert "\n" not in outcome
        else:
            assert isinstance(outcome, SpeculativeConfig)


def test_engine_arguments_that_change_nothing_are_taken() -> None:
    config = parse_engine(
        "t.gguf",
        tensor_parallel_size=1,
        gpu_memory_utilization=0.8,
        enforce_eager=True,
        disable_log_stats=False,
        trust_remote_code=True,
        enable_prefix_caching=True,
        max_num_batched_tokens=8192,
        hf_overrides={},
        dtype="auto",
        max_num_seqs=2,
        max_model_len=128,
        seed=0,
        speculative_model="d.gguf",
        num_speculative_tokens=5,
    )
    assert config == EngineConfig(
        *("t.gguf", AutoConfig("d.gguf", 5)),
        max_num_seqs=2,
        max_model_len=128,
        seed=0,
        dtype="auto",  # of the torch engine, as the next
        gpu_memory_utilization=0.8,
    )
    assert parse_engine("t", max_model_len=-1).max_model_len is None


def test_seeds_of_the_engine() -> None:
    assert parse_engine("t", seed=-1).seed is None
    assert parse_engine("t", seed=-2).seed == 2**64 - 2


def test_no_hint_at_an_argument_that_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown argument 'cpu_ofload_gb'$"):
        parse_engine("t", cpu_ofload_gb="x")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tensor_parallel_size": 2}, ["tensor_parallel_size=2", "one process"]),
        ({"code_revision": "main"}, ["code_revision='main'", "code"]),
        ({"dtype": "bfloat16"}, ["dtype='bfloat16'", "file"]),
        ({"engine": "native", "device": "cuda"}, ["device='cuda'", "runs on the CPU", "engine='torch'"]),
        ({"exact": "loose"}, ["'auto', 'strict', 'fast'", "'loose'"]),
        ({"gpu_memory_utilization": 1.5}, ["gpu_memory_utilization", "1.5"]),
        ({"gpu_memory_utilization": True}, ["gpu_memory_utilization", "True"]),
        ({"enable_lora": True}, ["enable_lora=True", "merge"]),
        ({"max_model_length": 5}, ["'max_model_length'", "did you mean 'max_model_len'"]),
        ({"speculative_modle": "d"}, ["did you mean 'speculative_model'"]),
        ({"max_model_len": 0}, ["max_model_len", "0"]),
        ({"max_num_seqs": 0}, ["max_num_seqs"]),
        ({"threads": -1}, ["threads", "-1"]),
        ({"seed": -(2**63) - 1}, ["seed", "-2**63"]),
        ({"override_generation_config": "{"}, ["override_generation_config", "not JSON"]),
        ({"override_generation_config": "[]"}, ["override_generation_config", "mapping", "list"]),
        ({"generation_config": 7}, ["generation_config", "7"]),
        ({"seed": 2**64}, ["seed"]),
        ({"seed": 1.5}, ["seed", "1.5"]),
    ],
)
def test_engine_arguments_refused(arguments: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_engine("t.gguf", **arguments)
    for word in words:
        assert word in str(caught.value)


def test_the_model_must_be_named() -> None:
    with pytest.raises(ConfigError, match="model must be"):
        parse_engine("  ")
    with pytest.raises(ConfigError, match="no model: give a path or a name as `model`"):
        parse_engine(None)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("model_path", "model"),
        ("pretrained_model_name_or_path", "model"),
        ("n_ctx", "max_model_len"),
        ("max_seq_length", "max_model_len"),
        ("n_threads", "threads"),
        ("draft_model", "speculative_model"),
        ("assistant_model", "speculative_model"),
        ("prompt_lookup_num_tokens", "num_speculative_tokens"),
        ("speculative_draft_model_path", "speculative_model"),
        ("random_seed", "seed"),
    ],
)
def test_names_of_other_libraries(name: str, own: str) -> None:
    with pytest.raises(ConfigError, match=f"^unknown argument '{name}': use '{own}'$"):
        parse_engine(None, **{name: 5})  # type: ignore[arg-type]


def test_every_name_of_another_library_leads_somewhere() -> None:
    own = {f.name for f in dataclasses.fields(EngineConfig)} - {"speculative"}
    own |= {"speculative_config", *OLD_SPECULATIVE_NAMES}
    assert set(foreign.RENAMED.values()) <= own
    assert not own & foreign.RENAMED.keys()
    assert not (own | foreign.RENAMED.keys()) & foreign.ELSEWHERE.keys()
    for name, (neutral, reason) in foreign.ELSEWHERE.items():
        assert reason or neutral(object()), name


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n_gpu_layers": -1}, "n_gpu_layers=-1 is refused: Outrider runs on the CPU; leave it out"),
        ({"device_map": "cuda"}, "runs on the CPU"),
        ({"load_in_4bit": True}, "use quantization='q4_k'"),
        ({"logits_all": True}, "logprobs"),
        ({"lora_path": "x"}, "merge them"),
        ({"chat_format": "chatml"}, r"chat\(chat_template=…\)"),
        ({"temperature": 0.5}, "give it to SamplingParams"),
        ({"token": "hf_secret"}, "HF_TOKEN"),
        ({"enable_sleep_mode": True}, r"close\(\)"),
    ],
)
def test_what_other_libraries_have_is_refused_with_the_way_out(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_engine("t.gguf", **arguments)


def test_a_token_is_not_repeated() -> None:
    for name in ("token", "use_auth_token"):
        with pytest.raises(ConfigError) as caught:
            parse_engine("t.gguf", **{name: "hf_secret"})
        assert "secret" not in str(caught.value)


def test_values_of_other_libraries_that_change_nothing_are_taken() -> None:
    neutral: dict[str, Any] = {
        **{"n_gpu_layers": 0, "verbose": False, "n_batch": 512, "use_mmap": True, "use_mlock": False},
        **{"logits_all": False, "device_map": "auto", "torch_dtype": "auto", "low_cpu_mem_usage": True},
        **{"chat_format": None, "load_in_8bit": False, "flash_attn": True},
        **{"enable_log_requests": True, "stream_interval": 4},
    }
    assert parse_engine("t.gguf", **neutral) == EngineConfig("t.gguf")
