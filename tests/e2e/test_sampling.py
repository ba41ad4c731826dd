"""Every sampling parameter, with and without speculation, on toy models: the same to the last bit.

A parameter that SamplingParams has and this file has not fails a test.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from outrider import LLM, ConfigError, RequestOutputKind, SamplingParams, grammar, pipeline
from outrider.decoding import loop
from outrider.decoding.context import TokenContext
from outrider.decoding.sampling import logprobs
from outrider.decoding.sampling.logprobs import token_logprobs
from outrider.decoding.types import TargetScores
from outrider.outputs import RequestOutput
from outrider.requests import bad_word_ids
from tests.conftest import load_toy
from tests.support.toy_model import ToyModel

PROMPTS: list[Any] = [
    "the quick brown fox",
    {"prompt_token_ids": [9]},
    "def function(self, name): return self.name or another(name) for name in names if not none",
    "jumps over the jumps over",
]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "number": {"type": "integer", "maximum": 99}},
    "required": ["name", "number"],
    "additionalProperties": False,
}
TIGHT = {"json": SCHEMA, "disable_any_whitespace": True}


def halve_repeats(output: list[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    logits[output] /= 2
    return logits


def echo_prompt(
    prompt: list[int], output: list[int], logits: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Makes the prompt's next token likelier."""
    logits[prompt[len(output) % len(prompt)]] += 3.0
    return logits


def stops_working(output: list[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    if len(output) > 20:
        raise ValueError("enough")
    return logits


# For each parameter, requests that use it. `max_tokens`, `seed` and `logprobs` are in all of them.
CASES: dict[str, list[dict[str, Any]]] = {
    "n": [{"n": 3}],
    "presence_penalty": [{"presence_penalty": 1.5}, {"presence_penalty": -1.0, "temperature": 0.0}],
    "frequency_penalty": [{"frequency_penalty": 1.2}, {"frequency_penalty": 2.0, "temperature": 0.0}],
    "repetition_penalty": [{"repetition_penalty": 1.4}, {"repetition_penalty": 0.7, "temperature": 0.0}],
    "temperature": [{"temperature": 0.0}, {"temperature": 0.3}, {"temperature": 2.0}],
    "top_p": [{"top_p": 0.6}],
    "top_k": [{"top_k": 3}],
    "min_p": [{"min_p": 0.2}],
    "seed": [{"seed": 0}, {"seed": 2**64 - 1}],
    "stop": [{"stop": list("aeiou")}, {"stop": [*"nrst(", "the"], "min_tokens": 9}],
    "stop_token_ids": [
        {"stop_token_ids": list(range(40, 60))},
        {"stop_token_ids": list(range(3, 300, 4)), "temperature": 0.0},
    ],
    "include_stop_str_in_output": [
        {"include_stop_str_in_output": True, "stop": list("aeiou")},
        {"include_stop_str_in_output": True, "stop_token_ids": list(range(40, 60))},
    ],
    "ignore_eos": [{"ignore_eos": True, "logit_bias": {0: 4.0, 2: 4.0}}],
    "max_tokens": [{"max_tokens": 1}, {"max_tokens": 2}, {"max_tokens": None, "temperature": 0.0}],
    "min_tokens": [{"min_tokens": 12, "logit_bias": {0: 9.0, 2: 9.0}}],
    "logprobs": [{"logprobs": 0}, {"logprobs": 5, "temperature": 0.0}, {"logprobs": -1, "max_tokens": 8}],
    "prompt_logprobs": [{"prompt_logprobs": 0}, {"prompt_logprobs": 4, "n": 2}, {"prompt_logprobs": -1}],
    "logit_bias": [{"logit_bias": {65: 6.0, 66: 5.0, 67: -3.0}}],
    "allowed_token_ids": [{"allowed_token_ids": list(range(60, 90))}],
    "bad_words": [{"bad_words": ["e", " the", "na", "or", "x"]}],
    "logits_processors": [
        {"logits_processors": [halve_repeats, echo_prompt]},
        {"logits_processors": [echo_prompt], "temperature": 0.0, "ignore_eos": True},
    ],
    "structured_outputs": [{"structured_outputs": TIGHT}, {"structured_outputs": {"json_object": True}}],
    "guided_decoding": [{"guided_decoding": TIGHT, "temperature": 0.0}],
    "json_schema": [{"json_schema": SCHEMA}, {"json_schema": SCHEMA, "min_tokens": 24, "ignore_eos": True}],
    "regex": [{"regex": "[a-c]{3,6}-?[0-9]*"}, {"regex": "(the|fox) (quick|brown) jump", "top_k": 2}],
    "choice": [{"choice": ["the quick brown fox", "the lazy dog", "another"]}],
    "grammar": [{"grammar": 'root ::= ("the " | "dog ")+ "." [0-9]*', "frequency_penalty": 1.0}],
    "detokenize": [{"detokenize": False}],
    "skip_special_tokens": [{"skip_special_tokens": False, "logit_bias": {1: 9.0}}],
    "spaces_between_special_tokens": [
        {"spaces_between_special_tokens": False, "skip_special_tokens": False, "logit_bias": {1: 9.0}}
    ],
    "truncate_prompt_tokens": [{"truncate_prompt_tokens": 3}],
    "truncation_side": [{"truncation_side": "right", "truncate_prompt_tokens": 3}],
    "logprob_token_ids": [
        {"logprob_token_ids": [70, 5], "logprobs": None},
        {"logprob_token_ids": [*range(128)], "logprobs": 128, "temperature": 0.0},
    ],
    "draft_text": [{"draft_text": "the quick brown fox"}, {"draft_text": [70, 71], "temperature": 0.0}],
    "output_kind": [{"output_kind": RequestOutputKind.DELTA}],
}
BASE: dict[str, Any] = {"temperature": 0.8, "max_tokens": 24, "seed": 11, "logprobs": 2}
# What no output shows: samples beyond the first, a choice that does not exist here, what AsyncLLM reads, and
# what is only drafted from.
UNSEEN = {"n", "spaces_between_special_tokens", "output_kind", "draft_text"}
ALL_CASES = [
    pytest.param(arguments, id=f"{name}-{i}") for name in CASES for i, arguments in enumerate(CASES[name])
]


def visible(outputs: list[RequestOutput]) -> list[Any]:
    """All that may not depend on speculation. Floats compare by ==, so bit for bit (none is NaN)."""
    return [
        (
            output.prompt_token_ids,
            output.prompt_logprobs,
            output.seed,
            [
                (
                    *(sample.token_ids, sample.text, sample.finish_reason, sample.stop_reason),
                    *(sample.logprobs, sample.cumulative_logprob, sample.seed),
                )
                for sample in output.outputs
            ],
        )
        for output in outputs
    ]


class Bench:
    """The same target without speculation, and with each drafter."""

    def __init__(self, target: Path, draft: Path) -> None:
        ngram = {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 1}
        model = {"method": "draft_model", "model": str(draft)}
        self.plain = LLM(target, speculative_config="none", max_num_seqs=3)
        self.drafting = [
            LLM(target, max_num_seqs=3, speculative_config={**config, "num_speculative_tokens": length})
            for config, length in ((ngram, 3), (model, 1), (model, 4), (model, 9))
        ]

    def differ(self, arguments: dict[str, Any]) -> int:
        """How many drafters show in the output, or fail where plain decoding does not."""
        params = SamplingParams(**{**BASE, **arguments})
        expected = visible(self.plain.generate(PROMPTS, params))
        found = 0
        for llm in self.drafting:
            try:
                found += visible(llm.generate(PROMPTS, params)) != expected
            except ConfigError:
                found += 1
        return found


@pytest.fixture(scope="module")
def bench(target_file: Path, draft_file: Path) -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "load_native", load_toy)
        yield Bench(target_file, draft_file)


def test_no_parameter_is_forgotten() -> None:
    assert set(CASES) == {field.name for field in dataclasses.fields(SamplingParams)}
    for name, cases in CASES.items():
        assert cases
        assert all(name in arguments for arguments in cases)


@pytest.mark.grid(4)
@pytest.mark.parametrize("arguments", ALL_CASES)
def test_speculation_changes_nothing(bench: Bench, arguments: dict[str, Any]) -> None:
    assert bench.differ(arguments) == 0


@pytest.mark.grid(2)
@pytest.mark.parametrize("name", CASES)
def test_no_parameter_is_ignored(bench: Bench, name: str) -> None:
    """Without it the output is another one."""
    for arguments in CASES[name]:
        without = {key: value for key, value in arguments.items() if key != name}
        if name == "stop_token_ids":
            without.pop("include_stop_str_in_output", None)
        outputs = [
            visible(bench.plain.generate(PROMPTS, SamplingParams(**{**BASE, **given})))
            for given in (arguments, without)
        ]
        if name in UNSEEN:
            continue
        assert outputs[0] != outputs[1], arguments


def test_every_drafter_has_drafts_accepted_and_rejected(bench: Bench) -> None:
    for llm in bench.drafting:
        params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
        outputs = llm.generate(PROMPTS, params)
        drafted = sum(o.metrics.drafts.num_draft_tokens for o in outputs)
        accepted = sum(o.metrics.drafts.num_accepted_tokens for o in outputs)
        assert 0 < accepted < drafted


def test_samples_are_those_of_their_seeds(bench: Bench) -> None:
    for llm in (bench.plain, bench.drafting[2]):
        (output,) = llm.generate(PROMPTS[:1], SamplingParams(**{**BASE, "n": 3}))
        assert len({tuple(s.token_ids) for s in output.outputs}) == 3
        for sample in output.outputs:
            (again,) = llm.generate(PROMPTS[:1], SamplingParams(**{**BASE, "seed": sample.seed}))
            assert again.outputs[0].token_ids == sample.token_ids


def test_a_processor_that_fails_ends_its_own_request_only(bench: Bench) -> None:
    params = SamplingParams(**BASE, logits_processors=[stops_working])
    for llm in (bench.plain, *bench.drafting):
        with pytest.raises(ConfigError, match=r"stops_working at position \d+ failed: ValueError: enough"):
            llm.generate(PROMPTS, params)
        short = SamplingParams(**{**BASE, "max_tokens": 20}, logits_processors=[stops_working])
        assert all(o.finished for o in llm.generate(PROMPTS, short))


@pytest.mark.parametrize("case", ["json_schema", "structured_outputs", "guided_decoding"])
def test_json_is_json(bench: Bench, case: str) -> None:
    blanks = {token: -30.0 for blank in " \t\r\n" for token in bench.plain.get_tokenizer().encode(blank)}
    params = SamplingParams(**{**BASE, **CASES[case][0], "max_tokens": 60, "logit_bias": blanks})
    found = [o.outputs[0] for o in bench.drafting[2].generate(PROMPTS, params)]
    done = [sample for sample in found if sample.finish_reason == "stop"]
    assert done
    for sample in done:
        value = json.loads(sample.text)
        assert value.keys() == {"name", "number"}
        assert isinstance(value["number"], int)
        assert sample.stop_reason is None


def test_forced_tokens_are_drafted_without_a_drafters_help(bench: Bench) -> None:
    params = SamplingParams(**{**BASE, "structured_outputs": TIGHT})
    plain, found = (
        sum(o.metrics.num_passes for o in llm.generate(PROMPTS, params))
        for llm in (bench.plain, bench.drafting[0])
    )
    assert found < plain
    counts = [o.metrics.by_drafter["constraint"] for o in bench.drafting[0].generate(PROMPTS, params)]
    assert all(c.num_accepted_tokens == c.num_draft_tokens > 0 for c in counts)
    assert all(not o.metrics.by_drafter for o in bench.plain.generate(PROMPTS, params))


def test_logprobs_are_the_models_own(bench: Bench, target_file: Path) -> None:
    """Against a second computation, from the model's rows for the whole sequence."""
    arguments = {**BASE, "repetition_penalty": 1.5, "logit_bias": {65: 4.0}, "top_k": 5, "prompt_logprobs": 3}
    (output,) = bench.drafting[2].generate(PROMPTS[:1], SamplingParams(**arguments))
    assert _misreported(output) == 0
    assert output.outputs[0].cumulative_logprob == pytest.approx(
        sum(entry[t].logprob for entry, t in _entries(output)[1])
    )


def _entries(output: RequestOutput) -> tuple[list[Any], list[Any]]:
    sample = output.outputs[0]
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert sample.logprobs is not None
    prompt = list(zip(output.prompt_logprobs, output.prompt_token_ids, strict=True))[1:]
    return prompt, list(zip(sample.logprobs, sample.token_ids, strict=True))


def _misreported(output: RequestOutput) -> int:
    """Tokens whose reported log-probabilities are not the log-softmax of the toy target's logits."""
    prompt, sample = _entries(output)
    ids = np.array([*output.prompt_token_ids, *output.outputs[0].token_ids], np.int64)
    model = ToyModel(320, 256, seed=1, sharpness=3.0, memory=0.2)
    wrong = 0
    for at, (entry, token) in enumerate([*prompt, *sample], start=1):
        logits = model._logits(ids[:at], np.arange(at)).astype(np.float64)
        exact = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        wanted = [token, *np.argsort(-exact, kind="stable")[: 3 if at <= len(prompt) else 2]]
        same = list(dict.fromkeys(int(i) for i in wanted)) == list(entry)
        wrong += not (same and all(abs(entry[i].logprob - exact[i]) < 1e-9 for i in entry))
    return wrong


def test_logprobs_of_adjusted_logits_are_caught(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {**BASE, "logit_bias": {65: 4.0}, "prompt_logprobs": 3}

    def adjusted(row: npt.NDArray[np.float32], *arguments: Any) -> Any:
        changed = row.copy()
        changed[65] += 4.0
        return token_logprobs(changed, *arguments)

    monkeypatch.setattr(logprobs, "token_logprobs", adjusted)
    (output,) = bench.drafting[2].generate(PROMPTS[:1], SamplingParams(**arguments))
    assert _misreported(output) > 0


def test_logprobs_of_the_wrong_row_are_caught(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = logprobs.token_reports

    def first_row(params: Any, scores: Any, *more: Any) -> Any:
        return reports(params, TargetScores(np.repeat(scores.logits[:1], len(scores.logits), axis=0)), *more)

    monkeypatch.setattr(loop, "token_reports", first_row)
    assert bench.differ({}) > 0


def test_bad_words_that_ignore_the_path_are_caught(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    ends_with = TokenContext.ends_with

    def committed_only(self: TokenContext, tokens: Any) -> bool:
        return ends_with(self._base, tokens)

    tokenizer, pairs = bench.plain.get_tokenizer(), []
    for output in bench.plain.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=60)):
        ids = output.outputs[0].token_ids
        written = [(tokenizer.decode(pair), pair) for pair in map(list, pairwise(ids))]
        pairs += [
            word for word, pair in written if word.strip() and bad_word_ids(tokenizer, [word])[0] == (*pair,)
        ]
    assert len(pairs) > 5
    arguments: dict[str, Any] = {
        "bad_words": pairs[::3],
        "temperature": 0.0,
        "ignore_eos": True,
        "max_tokens": 60,
    }
    assert bench.differ(arguments) == 0
    monkeypatch.setattr(TokenContext, "ends_with", committed_only)
    assert bench.differ(arguments) > 0


def test_processors_that_ignore_the_path_are_caught(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    committed = property(lambda self: self.tokens[self.prompt_length :])
    monkeypatch.setattr(TokenContext, "output", committed)
    assert bench.differ(CASES["logits_processors"][0]) > 0


def test_a_mask_that_is_not_rolled_back_is_caught(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(self: grammar.GrammarConstraint, length: int) -> None:
        del self._tokens[length:], self._masks[length + 1 :], self._ended[length + 1 :]

    monkeypatch.setattr(grammar.GrammarConstraint, "_rewind", forgets)
    assert bench.differ(CASES["json_schema"][0]) > 0


def test_text_after_the_grammars_end_is_caught(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A constraint whose end is noticed only between steps."""
    ended = grammar.GrammarConstraint.ended
    calls: list[int] = []

    def late(self: grammar.GrammarConstraint, context: TokenContext) -> bool:
        calls.append(1)
        return len(calls) % 3 == 0 and ended(self, context)

    monkeypatch.setattr(grammar.GrammarConstraint, "ended", late)
    assert bench.differ(CASES["choice"][0]) > 0
