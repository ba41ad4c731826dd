"""The Python API, on toy models: shapes of the outputs, seeds, identity with and without speculation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outrider import LLM, SamplingParams
from outrider.config.engine import parse_engine
from outrider.engines.base import LanguageModel
from outrider.errors import (
    ConfigError,
    InsufficientMemoryError,
    ModelError,
    PromptError,
    VocabularyMismatchError,
)
from outrider.models.open import open_model
from outrider.models.source import ModelSource
from outrider.pipeline import build
from tests.conftest import load_toy
from tests.support.models import tiny_gguf

pytestmark = pytest.mark.usefixtures("toy_engine")

PROMPTS = ["the quick brown fox", "def function(self, name):", "jumps over"]
SEEDED = SamplingParams(temperature=0.8, max_tokens=40, seed=11)
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
SPECULATION: list[dict[str, Any]] = [
    {},
    {"speculative_config": {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 1}},
    {"speculative_config": "none"},
]


@pytest.fixture
def llm(target_file: Path) -> LLM:
    return LLM(target_file)


def _ids(llm: LLM, prompts: Any, params: Any) -> list[list[int]]:
    return [o.outputs[0].token_ids for o in llm.generate(prompts, params)]


def test_the_five_lines(target_file: Path, draft_file: Path) -> None:
    llm = LLM(model=str(target_file), speculative_model=str(draft_file), num_speculative_tokens=5)
    params = SamplingParams(temperature=0.7, max_tokens=25, ignore_eos=True)
    outputs = llm.generate("the quick brown", params)
    assert len(outputs) == 1
    output, sample = outputs[0], outputs[0].outputs[0]
    tokenizer = llm.get_tokenizer()
    assert output.prompt == "the quick brown"
    assert output.prompt_token_ids == tokenizer.encode("the quick brown")
    assert len(sample.token_ids) == len(sample.token_kinds) == 25
    assert sample.text == tokenizer.decode(sample.token_ids)
    assert (sample.finish_reason, sample.stop_reason, sample.index) == ("length", None, 0)
    assert output.finished
    metrics = output.metrics.to_dict()
    assert metrics["num_accepted_tokens"] == sample.token_kinds.count("accepted")
    assert metrics["speculation"].startswith("off"), "this draft takes as long as its target"


def test_a_fixed_draft(target_file: Path, draft_file: Path) -> None:
    config = {"method": "draft_model", "model": str(draft_file), "num_speculative_tokens": 5}
    llm = LLM(model=str(target_file), speculative_config=config)
    output = llm.generate("the quick brown", SamplingParams(temperature=0.7, max_tokens=25, ignore_eos=True))[
        0
    ]
    metrics = output.metrics.to_dict()
    assert metrics["num_draft_tokens"] > 0
    assert metrics["num_accepted_tokens"] == output.outputs[0].token_kinds.count("accepted")
    assert metrics["speculation"].startswith("on")


@pytest.mark.parametrize("params", [SEEDED, GREEDY])
def test_the_same_tokens_with_and_without_speculation(
    target_file: Path, draft_file: Path, params: SamplingParams
) -> None:
    plain = _ids(LLM(target_file, speculative_config="none"), PROMPTS, params)
    assert len({tuple(ids) for ids in plain}) == len(PROMPTS)
    for arguments in [*SPECULATION, {"speculative_model": str(draft_file), "num_speculative_tokens": 3}]:
        assert _ids(LLM(target_file, **arguments), PROMPTS, params) == plain


def test_a_prompts_output_does_not_depend_on_other_prompts(llm: LLM) -> None:
    together = _ids(llm, PROMPTS, SEEDED)
    assert [_ids(llm, p, SEEDED)[0] for p in PROMPTS] == together
    assert _ids(llm, PROMPTS[::-1], SEEDED) == together[::-1]


def test_other_seeds_give_other_texts_and_the_reported_seed_repeats(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True)
    first, second = llm.generate(["the fox"] * 2, params)
    assert first.outputs[0].token_ids != second.outputs[0].token_ids
    assert first.seed != second.seed
    again = SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True, seed=first.outputs[0].seed)
    assert _ids(llm, "the fox", again)[0] == first.outputs[0].token_ids


def test_an_engine_seed_makes_unseeded_requests_repeatable(target_file: Path) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    runs = [_ids(LLM(target_file, seed=s), ["a", "a"], params) for s in (3, 3, 4)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    assert runs[0][0] != runs[0][1]


def test_several_samples(llm: LLM) -> None:
    params = SamplingParams(n=3, temperature=1.0, max_tokens=15, seed=5, ignore_eos=True)
    (output,) = llm.generate("the lazy dog", params)
    assert [o.index for o in output.outputs] == [0, 1, 2]
    assert len({tuple(o.token_ids) for o in output.outputs}) == 3
    assert len({o.seed for o in output.outputs}) == 3
    one = SamplingParams(temperature=1.0, max_tokens=15, seed=output.outputs[2].seed, ignore_eos=True)
    assert _ids(llm, "the lazy dog", one)[0] == output.outputs[2].token_ids
    assert output.metrics.num_tokens == 45


def test_every_form_of_prompt(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("the fox")
    forms: list[Any] = ["the fox", {"prompt": "the fox"}, {"prompt_token_ids": ids}, ids]
    expected = _ids(llm, "the fox", GREEDY)[0]
    for form in forms:
        assert _ids(llm, form, GREEDY) == [expected]
    assert _ids(llm, forms, GREEDY) == [expected] * 4
    assert llm.generate(ids, GREEDY)[0].prompt is None
    assert llm.generate([], GREEDY) == []


def test_recent_outputs_are_looked_up(target_file: Path) -> None:
    pipeline = build(parse_engine(str(target_file), {"method": "suffix"}))

    def steps(llm: LLM, prompt: Any) -> int:
        return llm.generate(prompt, GREEDY)[0].metrics.num_passes

    once = LLM.from_pipeline(pipeline)
    usual = steps(once, {"prompt": "the fox", "cache_salt": "a"})
    assert steps(once, {"prompt": "the fox", "cache_salt": "b"}) == usual
    assert steps(once, "the fox") == usual
    assert steps(once, "the fox") < usual
    assert steps(once, {"prompt": "the fox", "cache_salt": "a"}) < usual
    alone = LLM.from_pipeline(pipeline, shared=False)
    assert [steps(alone, "the fox") for _ in range(2)] == [usual, usual]


def test_one_set_of_parameters_for_each_prompt(llm: LLM) -> None:
    lengths = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (3, 7)]
    assert [len(ids) for ids in _ids(llm, PROMPTS[:2], lengths)] == [3, 7]
    with pytest.raises(ConfigError, match="3 prompts and 2 sampling_params"):
        llm.generate(PROMPTS, lengths)
    with pytest.raises(ConfigError, match="SamplingParams"):
        llm.generate(PROMPTS, {"temperature": 0})  # type: ignore[arg-type]


def test_stop_strings_end_the_text(llm: LLM) -> None:
    full = llm.generate("the quick", GREEDY)[0].outputs[0].text
    stop = full[6:9]
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, stop=[stop])
    sample = llm.generate("the quick", params)[0].outputs[0]
    assert (sample.finish_reason, sample.stop_reason) == ("stop", stop)
    assert sample.text == full[: full.index(stop)]


def test_the_context_ends_a_text(target_file: Path) -> None:
    llm = LLM(target_file, max_model_len=24)
    (output,) = llm.generate("the fox", SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True))
    assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == 24
    assert output.outputs[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", "empty"),
        ({"prompt": ""}, "empty"),
        ({"prompt_token_ids": []}, "empty"),
        ({"prompt_tokens": [1]}, "did you mean 'prompt_token_ids'"),
        ([5, 320], "320"),
        ([-1], "-1"),
        ([True, 1.5], "integers"),
        ({"prompt_token_ids": [1, "2"]}, "integers"),
        ({"prompt_token_ids": "12"}, "list of integers"),
        ({"prompt": 7}, "text"),
        ({"prompt": "the fox", "cache_salt": 7}, "cache_salt must be text"),
        ([9] * 256, "256"),
        (7, "must be text"),
        ("\ud800", "surrogate"),
    ],
)
def test_bad_prompts(llm: LLM, prompt: Any, words: str) -> None:
    with pytest.raises(PromptError) as caught:
        llm.generate(prompt, GREEDY)
    assert words in str(caught.value)


def test_a_bad_prompt_is_reported_by_number_before_anything_runs(llm: LLM) -> None:
    prompts: list[Any] = ["fine", [999]]
    with pytest.raises(PromptError, match=r"prompt 2: .*999"):
        llm.generate(prompts, GREEDY)
    assert _ids(llm, "the fox", GREEDY)  # the engine still works


def test_unknown_arguments_name_the_nearest(target_file: Path, llm: LLM) -> None:
    with pytest.raises(ConfigError, match="did you mean 'speculative_model'"):
        LLM(target_file, speculative_modle="x")
    with pytest.raises(ConfigError, match="did you mean 'sampling_params'"):
        llm.generate("a", sampling_param=GREEDY)
    with pytest.raises(ConfigError, match="did you mean 'messages'"):
        llm.chat([], message=1)


def test_arguments_of_vllms_calls_that_change_nothing(llm: LLM) -> None:
    plain = _ids(llm, "the fox", GREEDY)
    neutral: dict[str, Any] = {"lora_request": None, "priority": [0], "mm_processor_kwargs": {}}
    (found,) = llm.generate("the fox", GREEDY, tokenization_kwargs=None, **neutral)
    assert found.outputs[0].token_ids == plain[0]
    with pytest.raises(ConfigError, match=r"lora_request=.* is refused: adapters"):
        llm.generate("a", GREEDY, lora_request=object())
    with pytest.raises(ConfigError, match="priority"):
        llm.generate("a", GREEDY, priority=[1])


@pytest.mark.parametrize("length", [256, 257, 99_999])
def test_a_context_beyond_the_models_is_lowered_with_one_warning(
    target_file: Path, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    llm = LLM(target_file, max_model_len=length)
    found = llm.generate("the fox", SamplingParams(max_tokens=None, temperature=0, ignore_eos=True))[0]
    assert len(found.prompt_token_ids) + len(found.outputs[0].token_ids) == 256
    told = [r.getMessage() for r in caplog.records]
    assert told == ([] if length == 256 else [
        f"a context of {length} tokens is more than the model's: it is lowered to 256"
    ])  # fmt: skip


def test_threads_beyond_the_processors_are_lowered_with_one_warning(
    target_file: Path, draft_file: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int | None] = []

    def load(source: ModelSource, threads: int | None) -> LanguageModel:
        used.append(threads)
        return load_toy(source, threads)

    monkeypatch.setattr("outrider.pipeline.load_native", load)
    monkeypatch.setattr("outrider.pipeline.available_processors", lambda: 2)
    for threads in (None, 1, 2):
        LLM(target_file, threads=threads)
    assert not caplog.records
    LLM(target_file, speculative_model=str(draft_file), threads=64)
    assert used == [None, 1, 2, 2, 2]
    (record,) = caplog.records
    assert record.getMessage() == "64 threads are more than the 2 processors: lowered to 2"


def test_a_draft_of_another_vocabulary_is_refused(target_file: Path, tmp_path: Path) -> None:
    tokens = list(open_model(target_file).tokenizer.tokens)
    tokens[2] = "<|other|>"
    draft = tiny_gguf(tmp_path / "draft.gguf", keys={"tokenizer.ggml.tokens": tokens})
    with pytest.raises(VocabularyMismatchError) as caught:
        LLM(target_file, speculative_model=str(draft))
    assert "id 2 is '<|im_end|>' in the target and '<|other|>' in the draft" in str(caught.value)


def test_too_little_memory_is_reported_before_loading(
    target_file: Path, draft_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.memory.available_bytes", lambda: 1000)
    monkeypatch.setattr("outrider.pipeline.load_native", lambda *_: pytest.fail("loaded"))
    with pytest.raises(InsufficientMemoryError, match=r"target .* draft .* available 1 kB"):
        LLM(target_file, speculative_model=str(draft_file))


def test_a_model_may_borrow_a_tokenizer_that_fits(target_file: Path, draft_file: Path) -> None:
    plain = _ids(LLM(target_file), "the fox", GREEDY)
    assert _ids(LLM(target_file, tokenizer=str(draft_file)), "the fox", GREEDY) == plain


def test_a_revision_is_for_the_hub(target_file: Path) -> None:
    with pytest.raises(ConfigError, match="hub"):
        LLM(target_file, revision="main")


def test_streaming_gives_the_same_in_pieces(target_file: Path, draft_file: Path) -> None:
    llm = LLM(target_file, speculative_model=str(draft_file), num_speculative_tokens=4)
    params = SamplingParams(temperature=0.5, seed=2, max_tokens=30, ignore_eos=True)
    whole = llm.generate("the fox", params)[0].outputs[0]
    steps = list(llm.stream("the fox", params))
    chunks = [c for step in steps for c in step]
    assert "".join(c.text for c in chunks) == whole.text
    assert [c.token_id for c in chunks if c.token_id is not None] == whole.token_ids
    assert any(len(step) > 1 for step in steps)
    assert [c.output is not None for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].output is not None
    assert chunks[-1].output.outputs[0].token_ids == whole.token_ids


def test_a_stream_can_be_left(llm: LLM) -> None:
    stream = llm.stream("the fox", GREEDY)
    next(stream)
    stream.close()
    assert len(_ids(llm, "the fox", GREEDY)[0]) == 40


def test_chat_goes_through_the_models_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "the fox?"}]
    (output,) = llm.chat(messages, GREEDY)
    assert output.prompt == "<|im_start|>user\nthe fox?<|im_end|>\n<|im_start|>assistant\n"
    assert output.prompt_token_ids[0] == 1
    two = llm.chat([messages, messages], GREEDY)
    assert [o.outputs[0].token_ids for o in two] == [output.outputs[0].token_ids] * 2


@pytest.mark.parametrize("messages", [[], [{}], [{"role": "user"}], ["hello"], [[]], 7])
def test_bad_messages(llm: LLM, messages: Any) -> None:
    with pytest.raises((PromptError, ModelError, ConfigError)) as caught:
        llm.chat(messages, GREEDY)
    assert "\n" not in str(caught.value)


def test_a_stream_can_be_cancelled(llm: LLM) -> None:
    asked: list[None] = []

    def cancelled() -> bool:
        asked.append(None)
        return len(asked) > 5

    steps = list(llm.stream("the fox", GREEDY, cancelled=cancelled))
    output = steps[-1][-1].output
    assert output is not None
    sample = output.outputs[0]
    assert sample.finish_reason == "abort"
    assert 0 < len(sample.token_ids) < 40
    assert sample.metrics.num_tokens == len(sample.token_ids)
    assert sample.token_ids == _ids(llm, "the fox", GREEDY)[0][: len(sample.token_ids)]


@pytest.mark.parametrize("config", ["ngram", "suffix", "auto", "none"])
def test_a_draft_text_changes_the_speed_only(target_file: Path, config: str) -> None:
    llm = LLM(target_file, speculative_config=config)
    plain = llm.generate(PROMPTS[0], GREEDY)[0].outputs[0]
    for draft in (plain.token_ids, tuple(plain.token_ids[:20]), plain.text, "something else", [], ""):
        params = GREEDY.clone()
        params.draft_text = draft
        found = llm.generate(PROMPTS[0], params)[0].outputs[0]
        assert found.token_ids == plain.token_ids
        accepted, rejected = (
            found.metrics.accepted_prediction_tokens,
            found.metrics.rejected_prediction_tokens,
        )
        assert accepted + rejected <= found.metrics.num_draft_tokens
        if config in ("ngram", "suffix") and draft is plain.token_ids:
            assert accepted >= 20
            assert rejected == 0
        if config == "none" or not draft:
            assert accepted == rejected == 0


def test_each_prompt_has_its_own_draft_text_and_chat_takes_one(target_file: Path) -> None:
    llm = LLM(target_file, speculative_config="suffix")
    plain = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)]
    params = [
        SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, draft_text=ids) for ids in plain
    ]
    found = llm.generate(PROMPTS, params)
    assert [output.outputs[0].token_ids for output in found] == plain
    assert all(output.metrics.accepted_prediction_tokens >= 20 for output in found)
    assert sum(o.metrics.accepted_prediction_tokens for o in found) == sum(
        sample.metrics.prediction.num_accepted_tokens for o in found for sample in o.outputs
    )
    talk = [{"role": "user", "content": "hello"}]
    answer = llm.chat(talk, GREEDY)[0].outputs[0]
    again = llm.chat(
        talk, SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, draft_text=answer.token_ids)
    )
    assert again[0].outputs[0].token_ids == answer.token_ids
    assert again[0].metrics.accepted_prediction_tokens >= 20


def test_a_draft_text_that_is_none_is_refused(target_file: Path) -> None:
    for bad in (5, [1, "x"], [-1], [1.5], {"type": "content"}, b"text"):
        with pytest.raises(ConfigError, match="draft_text") as error:
            SamplingParams(draft_text=bad)  # type: ignore[arg-type]
        assert "\n" not in str(error.value)
    with pytest.raises(
        ConfigError, match=r"draft_text has the token id 5000, and the vocabulary ends at 319"
    ):
        LLM(target_file).generate("x", SamplingParams(draft_text=[1, 5000]))
    with pytest.raises(ConfigError, match="use 'draft_text'"):
        SamplingParams(prediction={"type": "content", "content": "x"})  # type: ignore[call-arg]
