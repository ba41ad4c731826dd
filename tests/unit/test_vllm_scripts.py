"""Scripts as people write them for vLLM's offline `LLM`, with the import changed and nothing else."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tqdm import tqdm

from outrider import (
    LLM,
    AsyncEngineArgs,
    EngineArgs,
    RequestOutputKind,
    SamplingParams,
    TextPrompt,
    TokensPrompt,
)
from outrider.errors import ConfigError, OutriderError, PromptError
from outrider.metrics import Counter, Vector
from tests.support.models import tiny_gguf

pytestmark = pytest.mark.usefixtures("toy_engine")

PROMPTS = ["Hello, my name is", "The capital of France is", "the quick brown fox"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
CONVERSATION = [
    {"role": "system", "content": "You are a helpful assistant"},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hello! How can I assist you today?"},
    {"role": "user", "content": "Write an essay about the importance of higher education."},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_current_weather",
            "description": "Get the current weather in a given location",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_max": 2,
    "prompt_lookup_min": 1,
}


@pytest.fixture
def llm(target_file: Path) -> LLM:
    return LLM(target_file)


def test_offline_inference(target_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sampling_params = SamplingParams(temperature=0.8, top_p=0.95)
    llm = LLM(model=str(target_file), enforce_eager=True, gpu_memory_utilization=0.9)
    outputs = llm.generate(PROMPTS, sampling_params)
    for output in outputs:
        generated_text = output.outputs[0].text
        print(f"Prompt:    {output.prompt!r}\nOutput:    {generated_text!r}")
    assert capsys.readouterr().out.count("Prompt: ") == 3


def test_every_member_of_an_output(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=6, logprobs=1, prompt_logprobs=1, n=2)
    (output,) = llm.generate(PROMPTS[0], params, use_tqdm=False, lora_request=None, priority=[0])
    assert (output.prompt, output.finished, output.lora_request) == (PROMPTS[0], True, None)
    assert isinstance(output.request_id, str)
    assert output.num_cached_tokens == 0
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    assert output.prompt_logprobs[0] is None
    for number, sample in enumerate(output.outputs):
        assert sample.index == number
        assert sample.finished()
        assert sample.finish_reason in ("stop", "length")
        assert sample.stop_reason is None
        assert sample.lora_request is None
        assert sample.logprobs is not None
        own = [entry[token].logprob for token, entry in zip(sample.token_ids, sample.logprobs, strict=True)]
        assert sample.cumulative_logprob == pytest.approx(sum(own))


def test_forms_of_prompts(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode(PROMPTS[0])
    (expected,) = [o.outputs[0].token_ids for o in llm.generate(PROMPTS[0], GREEDY)]
    forms: list[Any] = [
        TextPrompt(prompt=PROMPTS[0]),
        TokensPrompt(prompt_token_ids=ids),
        {"prompt_token_ids": ids, "prompt": "shown", "multi_modal_data": None},
        {"prompt_token_ids": np.array(ids)},
        tuple(ids),
        np.array(ids, np.int32),
        [np.int64(token) for token in ids],
    ]
    for form in forms:
        assert [o.outputs[0].token_ids for o in llm.generate(form, GREEDY)] == [expected], form
    assert [o.outputs[0].token_ids for o in llm.generate(iter([PROMPTS[0]]), GREEDY)] == [expected]  # type: ignore[arg-type]
    (shown,) = llm.generate(forms[2], GREEDY)
    assert (shown.prompt, shown.prompt_token_ids) == ("shown", ids)


def test_token_ids_in_the_older_way(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    prompt_ids = [
        tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True)
        for prompt in PROMPTS
    ]
    outputs = llm.generate(prompt_token_ids=prompt_ids, sampling_params=GREEDY)
    chats = llm.chat([[{"role": "user", "content": prompt}] for prompt in PROMPTS], GREEDY)
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in chats]
    assert [o.prompt for o in outputs] == [None] * 3
    (one,) = llm.generate("text", GREEDY, prompt_token_ids=prompt_ids[0])
    assert (one.prompt, one.prompt_token_ids) == ("text", prompt_ids[0])
    with pytest.raises(PromptError, match="1 prompts and 3 lists"):
        llm.generate("text", GREEDY, prompt_token_ids=prompt_ids)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([{"role": "user", "content": "hi"}], r"give them to chat\(\)"),
        ({"input_ids": [1, 2]}, "use 'prompt_token_ids'"),
        ({"prompt": "a", "multi_modal_data": {"image": 1}}, "text only"),
        ({"prompt_token_ids": [True]}, "integers, not True"),
        (b"bytes", "not bytes"),
    ],
)
def test_prompts_that_cannot_be_read(llm: LLM, prompt: Any, words: str) -> None:
    with pytest.raises(PromptError, match=words):
        llm.generate(prompt, GREEDY)


def test_parameters_for_each_prompt_and_changed_ones(llm: LLM) -> None:
    each = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (1, 2, 3)]
    assert [len(o.outputs[0].token_ids) for o in llm.generate(PROMPTS, each)] == [1, 2, 3]
    sampling_params = SamplingParams(temperature=0, ignore_eos=True)
    sampling_params.max_tokens = 5
    assert len(llm.generate("a", sampling_params)[0].outputs[0].token_ids) == 5
    other = sampling_params.clone()
    other.max_tokens = 7
    assert len(llm.generate("a", sampling_params)[0].outputs[0].token_ids) == 5
    assert llm.generate("a", SamplingParams(output_kind=RequestOutputKind.DELTA))[0].finished


def test_a_bar_of_ones_own(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(PROMPTS, GREEDY, use_tqdm=functools.partial(tqdm, ascii=True, leave=True))
    assert "3/3" in capsys.readouterr().err
    llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""


def test_chat(llm: LLM) -> None:
    (one,) = llm.chat(CONVERSATION, GREEDY, use_tqdm=False)
    assert one.prompt is not None
    assert one.prompt.endswith("education.<|im_end|>\n<|im_start|>assistant\n")
    several = llm.chat([CONVERSATION for _ in range(3)], sampling_params=GREEDY, use_tqdm=True)
    assert [o.outputs[0].token_ids for o in several] == [one.outputs[0].token_ids] * 3
    template = (
        "{% for m in messages %}{{ m.content }} {% endfor %}{{ 'A:' if add_generation_prompt }}{{ tone }}"
    )
    (other,) = llm.chat(CONVERSATION[1:2], GREEDY, chat_template=template, chat_template_kwargs={"tone": "!"})
    assert other.prompt == "Hello A:!"
    (bare,) = llm.chat(CONVERSATION[1:2], GREEDY, chat_template=template, add_generation_prompt=False)
    assert bare.prompt == "Hello "
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    (text,) = llm.chat(parts, GREEDY, chat_template=template, chat_template_content_format="string")
    assert text.prompt == "Hello A:"
    (listed,) = llm.chat(
        CONVERSATION[1:2],
        GREEDY,
        chat_template="{{ messages[0].content[0].text }}",
        chat_template_content_format="openai",
    )
    assert listed.prompt == "Hello"


def test_an_answer_is_continued(llm: LLM) -> None:
    messages = [{"role": "user", "content": "List."}, {"role": "assistant", "content": "1. a\n2."}]
    (output,) = llm.chat(messages, GREEDY, add_generation_prompt=False, continue_final_message=True)
    assert output.prompt == "<|im_start|>user\nList.<|im_end|>\n<|im_start|>assistant\n1. a\n2."
    with pytest.raises(ConfigError, match="add_generation_prompt=False"):
        llm.chat(messages, GREEDY, continue_final_message=True)


def test_chat_with_tools(tmp_path: Path) -> None:
    template = (
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}[{{ m.role }}:{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments.city }}{% endfor %}]{% endfor %}"
    )
    model = tiny_gguf(tmp_path / "tools.gguf", seed=1, keys={"tokenizer.chat_template": template})
    llm = LLM(str(model))
    messages: list[dict[str, Any]] = [{"role": "user", "content": "The weather in Dallas?"}]
    outputs = llm.chat(messages, sampling_params=GREEDY, tools=TOOLS)
    assert outputs[0].prompt == json.dumps(TOOLS) + "[user:The weather in Dallas?]"
    call = {
        "type": "function",
        "function": {"name": "get_current_weather", "arguments": '{"city": "Dallas"}'},
    }
    messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
    messages.append({"role": "tool", "content": "85 degrees", "tool_call_id": "x"})
    outputs = llm.chat(messages, GREEDY, tools=TOOLS)
    assert outputs[0].prompt is not None
    assert outputs[0].prompt.endswith("[assistant:Dallas][tool:85 degrees]")


def test_tools_for_a_template_that_knows_none(llm: LLM) -> None:
    with pytest.raises(PromptError, match="the prompt has"):  # too long for this tiny model
        llm.chat([{"role": "user", "content": "Dallas?"}], GREEDY, tools=TOOLS)
    rendered = llm.render_chat([{"role": "user", "content": "Dallas?"}], tools=TOOLS)
    assert "get_current_weather" in rendered["prompt"]


def test_the_speculative_decoding_example(target_file: Path, draft_file: Path) -> None:
    config = {"method": "draft_model", "model": str(draft_file), "num_speculative_tokens": 4}
    llm = LLM(model=str(target_file), speculative_config=config, disable_log_stats=False)
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    num_drafts = num_draft_tokens = num_accepted_tokens = 0
    acceptance_counts = [0] * 4
    for metric in llm.get_metrics():
        if metric.name == "vllm:spec_decode_num_drafts":
            assert isinstance(metric, Counter)
            num_drafts += metric.value
        elif metric.name == "vllm:spec_decode_num_draft_tokens":
            assert isinstance(metric, Counter)
            num_draft_tokens += metric.value
        elif metric.name == "vllm:spec_decode_num_accepted_tokens":
            assert isinstance(metric, Counter)
            num_accepted_tokens += metric.value
        elif metric.name == "vllm:spec_decode_num_accepted_tokens_per_pos":
            assert isinstance(metric, Vector)
            for position, value in enumerate(metric.values):
                acceptance_counts[position] += value
    parts = [output.metrics for output in outputs]
    assert num_drafts == sum(part.num_drafts for part in parts) > 0
    assert num_draft_tokens == sum(part.num_draft_tokens for part in parts)
    assert num_accepted_tokens == sum(part.num_accepted_tokens for part in parts) > 0
    assert sum(acceptance_counts) == num_accepted_tokens
    for part in parts:
        assert part.spec_token_acceptance_counts == [part.num_drafts, *part.accepted_per_pos]
    llm.generate(PROMPTS, GREEDY)
    assert llm.get_metrics()[0].value > 3 * 40  # type: ignore[attr-defined]


def test_metrics_are_attributes(target_file: Path) -> None:
    (output,) = LLM(target_file, speculative_config=NGRAM).generate("the fox the fox", GREEDY)
    metrics, document = output.metrics, output.metrics.to_dict()
    for name, value in document.items():
        if name not in ("drafters", "earlier_outputs"):
            assert getattr(metrics, name) == value, name
    assert metrics.num_generation_tokens == 12
    assert metrics.first_token_time is not None
    assert metrics.last_token_time is not None
    assert metrics.arrival_time <= metrics.first_token_time <= metrics.last_token_time
    assert metrics.finished_time == metrics.last_token_time
    assert metrics.first_token_latency == metrics.first_token_time - metrics.arrival_time


def test_the_tokenizer(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    prompt = tokenizer.apply_chat_template(CONVERSATION, tokenize=False, add_generation_prompt=True)
    assert (
        tokenizer(prompt, add_special_tokens=False)["input_ids"]
        == llm.chat(CONVERSATION, GREEDY)[0].prompt_token_ids
    )
    assert len(tokenizer) == tokenizer.vocab_size
    stop = SamplingParams(temperature=0, stop_token_ids=[tokenizer.eos_token_id or 0], max_tokens=3)
    assert llm.generate(prompt, stop)[0].finished


def test_a_model_is_closed(target_file: Path) -> None:
    with LLM(target_file) as llm:
        outputs = llm.chat(CONVERSATION, GREEDY)
    assert outputs[0].outputs[0].text
    assert llm.get_tokenizer().encode("a")
    for call in (
        lambda: llm.generate("a", GREEDY),
        lambda: llm.generate([], GREEDY),
        lambda: llm.chat(CONVERSATION, GREEDY),
        lambda: next(llm.stream("a", GREEDY)),
        llm.get_metrics,
    ):
        with pytest.raises(ConfigError, match="this LLM is closed"):
            call()
    llm.close()


def test_a_model_is_closed_after_an_error(target_file: Path) -> None:
    with pytest.raises(PromptError), LLM(target_file) as llm:
        llm.generate("", GREEDY)
    with pytest.raises(ConfigError, match="closed"):
        llm.generate("a")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("encode", "get_tokenizer"),
        ("embed", "no embeddings"),
        ("classify", "choice"),
        ("score", "prompt_logprobs"),
        ("reward", "text only"),
        ("beam_search", "cumulative_logprob"),
    ],
)
def test_what_llm_does_not_do(llm: LLM, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        getattr(llm, name)(PROMPTS, params=None)
    assert str(caught.value).startswith(f"{name}() is refused: ")
    assert "\n" not in str(caught.value)


def test_arguments_that_cannot_be_honoured(llm: LLM) -> None:
    with pytest.raises(ConfigError, match=r"generate\(\): lora_request=.* is refused: adapters"):
        llm.generate("a", GREEDY, lora_request="adapter")
    with pytest.raises(ConfigError, match=r"chat\(\): lora_request=.* is refused"):
        llm.chat(CONVERSATION, GREEDY, lora_request="adapter")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="did you mean 'chat_template'"):
        llm.chat(CONVERSATION, GREEDY, chat_templat="x")
    llm.chat(CONVERSATION, GREEDY, mm_processor_kwargs=None, tokenization_kwargs={})


def test_a_model_given_under_another_name() -> None:
    for arguments, words in (
        ({"model_path": "x.gguf", "n_ctx": 512}, "'model_path': use 'model'"),
        ({"pretrained_model_name_or_path": "x"}, "use 'model'"),
        ({}, "there is no model"),
        ({"model": None}, "there is no model"),
        ({"model": 7}, "path or a name, not 7"),
    ):
        with pytest.raises(ConfigError, match=words):
            LLM(**arguments)


def test_engine_args(target_file: Path) -> None:
    args = EngineArgs(model=str(target_file), max_model_len=64, seed=0, enforce_eager=True)
    assert (args.max_model_len, args.model) == (64, str(target_file))
    for arguments in (dataclasses.asdict(args), vars(args)):
        assert len(LLM(**arguments).generate("a", GREEDY)[0].outputs[0].token_ids) == 12
    assert args.create_engine_config().max_model_len == 64
    args.max_model_len = 0
    with pytest.raises(ConfigError, match="max_model_len"):
        args.create_engine_config()
    with pytest.raises(ConfigError, match="use 'max_model_len'"):
        AsyncEngineArgs(str(target_file), n_ctx=5)
    with pytest.raises(OutriderError, match="no model"):
        EngineArgs()


def test_engine_args_from_a_command_line(target_file: Path) -> None:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    parser.set_defaults(model=str(target_file))
    line = "--max-model-len 64 --enforce-eager --gpu-memory-utilization 0.5 --speculative-config ngram"
    args = parser.parse_args(line.split())
    assert EngineArgs.from_cli_args(args).create_engine_config().max_model_len == 64
    assert LLM(**vars(args)).generate("a", GREEDY)[0].finished
    with pytest.raises(ConfigError, match="tensor_parallel_size=2"):
        EngineArgs.from_cli_args(parser.parse_args(["--tensor-parallel-size", "2"]))
