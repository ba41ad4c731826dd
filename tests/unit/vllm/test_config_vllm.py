"""vLLM's configuration in old and new spellings, in Python."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.config.speculative import AutoConfig, DraftModelConfig, NgramConfig, NoneConfig, SuffixConfig
from outrider.config.vllm import parse_vllm, parse_vllm_speculative
from outrider.errors import ConfigError, OutriderError


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, {}),
        ("none", {}),
        (NoneConfig(), {}),
        ("ngram", {"method": "ngram", "num_speculative_tokens": 5}),
        (NgramConfig(num_speculative_tokens=3), {"method": "ngram", "num_speculative_tokens": 3}),
        ({"method": "auto"}, {"method": "ngram", "num_speculative_tokens": 5}),
        (AutoConfig(model="org/d"), {"model": "org/d", "num_speculative_tokens": 5}),
        ({"model": "hf:org/d"}, {"model": "org/d", "num_speculative_tokens": 5}),
        ({"model": "[ngram]", "prompt_lookup_max": 4},
         {"method": "ngram", "prompt_lookup_max": 4, "num_speculative_tokens": 5}),
        (DraftModelConfig("org/d"), {"method": "draft_model", "model": "org/d", "num_speculative_tokens": 5}),
        (SuffixConfig(), {"method": "suffix"}),
        ('{"method": "eagle3", "model": "h", "num_speculative_tokens": 2, "verification": "block"}',
         {"method": "eagle3", "model": "h", "num_speculative_tokens": 2, "rejection_sample_method": "block"}),
        ({"method": "mtp"}, {"method": "mtp"}),
        ({"method": "dflash", "model": "d", "quantization": "stored"}, {"method": "dflash", "model": "d"}),
        ({"method": "draft_model", "model": "d", "acceptance_method": "rejection_sampler"},
         {"method": "draft_model", "model": "d", "num_speculative_tokens": 5}),
    ],
)  # fmt: skip
def test_all_forms_become_the_names_of_today(given: Any, found: dict[str, Any]) -> None:
    assert parse_vllm_speculative(given) == found


def test_old_arguments_are_read() -> None:
    config = parse_vllm(
        "org/t",
        speculative_model="org/d",
        num_speculative_tokens=4,
        speculative_draft_tensor_parallel_size=1,
        tensor_parallel_size=4,
        seed=None,
        engine="vllm",
        threads=2,
    )
    assert config.model == "org/t"
    assert config.speculative == {
        "model": "org/d",
        "num_speculative_tokens": 4,
        "draft_tensor_parallel_size": 1,
    }
    assert config.options == {"tensor_parallel_size": 4}
    assert config.threads == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"method": "ngram", "synthetic_acceptance_rates": [1.0]}, "wrong on purpose"),
        ({"method": "ngram", "rejection_sample_method": "synthetic"}, "wrong on purpose"),
        ({"method": "ngram", "acceptance_method": "typical_acceptance_sampler"}, "would not write"),
        ({"method": "ngram", "verification": "coupled"}, "vLLM's rules are 'rejection' and 'block'"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens must be"),
        ({"num_speculative_tokens": 3}, "neither a method nor a draft model"),
        ({"method": "draft_model", "model": "auto"}, "name the draft model"),
        ({"method": "draft_model", "model": "d", "quantization": "q3"}, "does not quantize"),
        ({"method": 3}, "method must be a name"),
        ("[1]", "must be a JSON object"),
        ({"model": "pypi:x"}, "a name on the hub"),
        ({"model": "hf:org/d:Q4"}, "whole repository"),
    ],
)
def test_what_no_version_can_do_is_refused(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        parse_vllm_speculative(given)
    assert "\n" not in str(caught.value)


def test_arguments_of_other_engines_are_refused() -> None:
    for name, value, said in (
        ("weights_cache", True, "packs no weights"),
        ("kv_quantization", "q8_0", "use vLLM's own kv_cache_dtype"),
        ("exact", "strict", "depend on the batch"),
        ("device", "cuda:1", "the device that it was built for"),
        ("n_ctx", 512, "use 'max_model_len'"),
        ("threads", 0, "threads must be"),
    ):
        with pytest.raises(ConfigError, match=said):
            parse_vllm("m", None, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not both"):
        parse_vllm("m", "ngram", num_speculative_tokens=2)
    with pytest.raises(ConfigError, match="there is no model"):
        parse_vllm(None)


VALUES = st.one_of(st.none(), st.booleans(), st.integers(-3, 9), st.text(max_size=6), st.lists(st.integers()))


@given(
    st.dictionaries(
        st.sampled_from(
            ["method", "model", "num_speculative_tokens", "verification", "quantization", "acceptance_method",
             "rejection_sample_method", "prompt_lookup_max", "x"]
        ),
        VALUES | st.sampled_from(["ngram", "auto", "none", "draft_model", "[ngram]"]),
    )
)  # fmt: skip
def test_anything_is_read_or_refused_in_a_line(given: dict[str, Any]) -> None:
    try:
        found = parse_vllm_speculative(given)
    except OutriderError as error:
        found = {"error": str(error)}
    assert "\n" not in found.get("error", "")
    assert None not in found.values()
