"""The command for an installed vLLM: against the options that a real package was recorded to have."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.config.vllm import parse_vllm
from outrider.engines.vllm.installed import Installed, of_document, read
from outrider.engines.vllm.launch import with_draft_tokens
from outrider.engines.vllm.translate import OWN_FLAGS, command, passed_flags
from outrider.errors import ConfigError
from tests.support.heads import original_folder, speculators_folder, tiny_head
from tests.support.models import tiny_hf

FILES = sorted((Path(__file__).resolve().parents[2] / "data" / "vllm").glob("*.json"))
NEWEST = read(FILES[-1].read_bytes(), "python")


def made(speculative: Any = None, *, version: Installed = NEWEST, **options: Any) -> list[str]:
    return list(command(parse_vllm("m", speculative, **options), version, 8001).words)


def config_of(words: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(words[words.index("--speculative-config") + 1])
    return found


def test_the_recorded_package_is_a_real_one() -> None:
    assert len(NEWEST.flags) > 150
    assert {"ngram", "draft_model", "eagle", "eagle3", "mtp", "suffix"} <= set(NEWEST.methods)
    assert NEWEST.flags["--tensor-parallel-size"].dest == "tensor_parallel_size"
    assert NEWEST.flags["--enforce-eager"].is_switch


def test_a_plain_server() -> None:
    assert made() == (
        ["python", "-m", "vllm.entrypoints.cli.main", "serve", "m", "--host", "127.0.0.1", "--port", "8001"]
    )


@pytest.mark.parametrize(
    "method", ["draft_model", "ngram", "suffix", "eagle", "eagle3", "mtp", "dflash", "dspark"]
)
def test_every_method_of_the_issue_is_translated(method: str) -> None:
    given = {"method": method, "num_speculative_tokens": 3}
    if method in ("draft_model", "eagle", "eagle3", "dflash", "dspark"):
        given["model"] = "d"
    assert config_of(made(given)) == given


@pytest.mark.parametrize("write", [original_folder, speculators_folder])
def test_a_head_is_told_from_a_draft_model(tmp_path: Path, write: Callable[..., Path]) -> None:
    """vLLM itself looks for "eagle3" in the folder's name."""
    head, model = write(tmp_path / "head", tiny_head()), tiny_hf(tmp_path / "model")
    assert config_of(made({"model": str(head)}))["method"] == "eagle3"
    assert config_of(made({"model": str(head), "method": "eagle"}))["method"] == "eagle"
    assert "method" not in config_of(made({"model": str(model)}))


def test_many_hosts() -> None:
    words = made(
        {"model": "d", "draft_tensor_parallel_size": 8},
        tensor_parallel_size=8,
        pipeline_parallel_size=2,
        distributed_executor_backend="ray",
        max_model_len=-1,
        enforce_eager=True,
        enable_prefix_caching=False,
        served_model_name=["a", "b"],
        override_generation_config={"temperature": 0},
    )
    line = shlex.join(words)
    for part in (
        "--tensor-parallel-size 8 --pipeline-parallel-size 2 --distributed-executor-backend ray",
        "--max-model-len=-1 --enforce-eager --no-enable-prefix-caching --served-model-name a b",
        """--override-generation-config '{"temperature": 0}'""",
    ):
        assert part in line
    assert config_of(words)["draft_tensor_parallel_size"] == 8


def test_threads_are_an_environment_variable() -> None:
    found = command(parse_vllm("m", threads=3), NEWEST, 8001)
    assert str(found).startswith("OMP_NUM_THREADS=3 python -m ")


def test_an_older_way_to_limit_batches_is_translated() -> None:
    ranges = "num_speculative_tokens_per_batch_size"
    given = {"method": "ngram", "num_speculative_tokens": 4, "disable_by_batch_size": 8}
    assert config_of(made(given))[ranges] == [[1, 7, 4], [8, 1 << 20, 0]]
    only = {"method": "ngram", "num_speculative_tokens": 4, "disable_by_batch_size": 1}
    assert config_of(made(only))[ranges] == [[1, 1 << 20, 0]]


def without(*keys: str) -> Installed:
    """The recorded version without some keys of its speculation."""
    kept = {key: value for key, value in NEWEST.speculative.items() if key not in keys}
    return Installed("0.1", "python", NEWEST.flags, kept, NEWEST.request_fields)


@pytest.mark.parametrize(
    ("speculative", "version", "options", "said"),
    [
        ({"method": "ngrams"}, NEWEST, {}, "did you mean 'ngram'"),
        ({"method": "ngram", "num_speculative_token": 3}, NEWEST, {}, "mean 'num_speculative_tokens'"),
        ({"method": "ngram", "rejection_sample_method": "typical"}, NEWEST, {}, "takes standard"),
        ({"model": "d", "draft_tensor_parallel_size": 2}, NEWEST, {"tensor_parallel_size": 4}, "1 card or"),
        ({"method": "ngram", "enable_adaptive_verification": True},
         without("enable_adaptive_verification"), {},
         "watch the measured speed-up"),
        ({"method": "ngram", "disable_by_batch_size": 3},
         without("num_speculative_tokens_per_batch_size"), {}, "disable_by_batch_size is refused"),
        ({"method": "ngram", "disable_by_batch_size": 0}, NEWEST, {}, "must be at least 1"),
        (None, NEWEST, {"tensor_parallel": 2}, "did you mean 'tensor_parallel_size'"),
        (None, NEWEST, {"enforce_eager": 3}, "is a switch"),
        (None, NEWEST, {"port": 3}, "of the server in front of it"),
        (None, NEWEST, {"dtype": "bfloat61"}, "did you mean 'bfloat16'"),
    ],
)  # fmt: skip
def test_what_the_version_cannot_honour_is_refused(
    speculative: Any, version: Installed, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        made(speculative, version=version, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("groups", "flags", "left"),
    [
        ([["-tp", "2"]], ["-tp", "2"], []),
        ([["--enforce-eager", "m"]], ["--enforce-eager"], ["m"]),
        ([["--enforce_eager=false"]], ["--no-enforce-eager"], []),
        ([["--max-num-batched-tokens=64"]], ["--max-num-batched-tokens=64"], []),
        ([["--max_num_batched_tokens", "64", "m"]], ["--max-num-batched-tokens", "64"], ["m"]),
        ([["--middleware", "a"], ["--middleware", "b"]], ["--middleware", "a", "--middleware", "b"], []),
    ],
)
def test_flags_of_its_own_are_handed_on(groups: list[list[str]], flags: list[str], left: list[str]) -> None:
    assert passed_flags(groups, NEWEST) == (flags, left)


@pytest.mark.parametrize(
    ("group", "said"),
    [
        (["--tensor-paralel-size", "2"], "did you mean '--tensor-parallel-size'"),
        (["--max-num-batched-tokens"], "needs a value"),
        (["--enforce-eager=maybe"], "neither true nor false"),
        (["--compilation-config.mode", "3"], "its whole JSON value"),
        (["--dtype", "flot16"], "did you mean 'float16'"),
        *([[flag, "x"], "of the server in front"] for flag in OWN_FLAGS),
    ],
)
def test_flags_that_cannot_be_handed_on_are_refused(group: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        passed_flags([group], NEWEST)


@given(st.integers(0, 20), st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 20))))
def test_fewer_draft_tokens_are_fewer_everywhere(count: int, ranges: list[tuple[int, int, int]]) -> None:
    keys = {"method": "ngram", "num_speculative_tokens": 20, "num_speculative_tokens_per_batch_size": ranges}
    found = with_draft_tokens(keys, count)
    assert found.get("num_speculative_tokens", 0) == count
    assert all(most <= count for _, _, most in found.get("num_speculative_tokens_per_batch_size", []))


@pytest.mark.parametrize("document", [None, [], {}, {"flags": 3}, {"version": "1", "flags": {"-a": {}}}])
def test_a_document_of_another_form_is_an_error(document: Any) -> None:
    with pytest.raises(ConfigError, match="another form"):
        of_document(document, "python")
