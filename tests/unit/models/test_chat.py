from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import ConfigError, OutriderError, PromptError
from outrider.models.open import open_model
from outrider.models.text.chat import ChatTemplate
from outrider.models.text.tokenizer import Tokenizer
from tests.scripts.record_tokenizer_reference import CONVERSATIONS, TEMPLATES
from tests.support.models import tiny_hf
from tests.unit.models.tokenizers_for_tests import DATA, model, model_tokenizer, tokenizer

TOKENIZER = tokenizer("bpe-qwen2")
RECORDED: dict[str, dict[str, str]] = json.loads((DATA / "chat.json").read_text())
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def plain() -> Iterator[ChatTemplate]:
    template = ChatTemplate("{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}", TOKENIZER)
    yield template
    template.close()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"bos_token": "<|im_start|>", "eos_token": "<|endoftext|>"}, "<|im_start|>,<|endoftext|>,"),
        ({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}, ",<|im_end|>,<|endoftext|>"),
        ({}, ",,"),
    ],
)
def test_the_tokens_are_the_tokenizers_own(tmp_path: Path, config: dict[str, str], expected: str) -> None:
    """Not the first id that ends a text, and not what config.json says."""
    folder = tiny_hf(tmp_path / "hf")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokens = Tokenizer.from_data(open_model(folder).tokenizer)
    assert tokens.eos_ids[0] == 2
    template = ChatTemplate("{{ bos_token }},{{ eos_token }},{{ pad_token }}", tokens)
    assert template.render(HI) == expected
    template.close()


def render_once(source: str, messages: Any = HI, seconds: float = 10.0, **options: Any) -> str:
    template = ChatTemplate(source, TOKENIZER, seconds=seconds, max_chars=options.pop("max_chars", 10**6))
    try:
        return template.render(messages, **options)
    finally:
        template.close()


@pytest.mark.parametrize("name", TEMPLATES)
def test_as_transformers_renders(name: str) -> None:
    template = ChatTemplate(TEMPLATES[name], TOKENIZER)
    for case, conversation in CONVERSATIONS.items():
        assert template.render(**conversation) == RECORDED[name][case]
    template.close()


@pytest.mark.model
def test_smollm2() -> None:
    check_model("smollm2-135m-instruct-q4_1.gguf", "smollm2")


@pytest.mark.pair
@pytest.mark.parametrize("size", ["0.5b", "1.5b"])
def test_qwen(size: str) -> None:
    check_model(f"qwen2.5-coder-{size}-instruct-q4_k_m.gguf", f"qwen2.5-coder-{size}")


def check_model(file: str, name: str) -> None:
    template = ChatTemplate(model(file).chat_template, model_tokenizer(file))
    for case, conversation in CONVERSATIONS.items():
        text = template.render(**conversation)
        assert hashlib.sha256(text.encode()).hexdigest() == RECORDED[name][case]
    template.close()


def test_variables_and_tokens() -> None:
    tokens = "{{ bos_token }}{{ eos_token }}{{ unk_token }}{{ pad_token }}"
    text = render_once(tokens + "{{ mood }}{{ strftime_now('%Y') | length }}", mood="calm")
    assert text == "<s></s><unk>calm4"


def test_no_template() -> None:
    for source in (None, ""):
        with pytest.raises(ConfigError, match=r"no chat template: give a plain prompt.* --chat-template"):
            ChatTemplate(source, TOKENIZER)


def test_content_parts_are_joined(plain: ChatTemplate) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert plain.render([{"role": "user", "content": parts}]) == "[user|a\nb]"
    others = [{"type": "input_text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    assert plain.render([{"role": "user", "content": others}]) == "[user|a\nb]"
    empty = [{"role": "assistant", "content": None}, {"role": "tool", "content": None}]
    assert plain.render([*HI, *empty]) == "[user|hi][assistant|][tool|]"
    calls = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    assert plain.render([*HI, calls]) == "[user|hi][assistant|None]"


def test_a_template_that_needs_a_text_gets_an_empty_one() -> None:
    """Of a message that has calls only. Where None will do it stays None, as in the test above."""
    calls = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    strict = (
        "{% for m in messages %}{% if '</think>' in m.content %}!{% endif %}[{{ m.content }}]{% endfor %}"
    )
    assert render_once(strict, [*HI, calls]) == "[hi][]"
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        render_once("{{ 1 / 0 }}", [*HI, calls])
    with pytest.raises(PromptError, match="refuses the messages: no calls"):
        render_once("{{ raise_exception('no calls') }}", [*HI, calls])


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "is empty"),
        ("hi", "must be a list"),
        ({"role": "user"}, "must be a list"),
        (["hi"], "message 0 is a str"),
        ([*HI, {"content": "x"}], "message 1 has no role"),
        ([{"role": 3, "content": "x"}], "no role"),
        ([{"role": "user"}], "message 0 .user. has no content"),
        ([{"role": "system", "content": None}], "has no content"),
        ([{"role": "user", "content": 5}], "content of type int"),
        ([{"role": "user", "content": b"x"}], "content of type bytes"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "type 'image_url'; only text"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "'text' without a text in 'text'"),
        ([{"role": "user", "content": [{"type": "refusal", "text": "a"}]}], "without a text in 'refusal'"),
        ([{"role": "user", "content": [{"type": [1]}]}], "only text"),
        ([{"role": "user", "content": ["x"]}], "type 'str'; only text"),
        ([{"role": "user", "content": "x", "name": {1, 2}}], "JSON"),
    ],
)
def test_malformed_messages(plain: ChatTemplate, messages: Any, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        plain.render(messages)


def test_the_template_may_refuse() -> None:
    with pytest.raises(PromptError, match="refuses the messages: roles must alternate") as error:
        render_once("{{ raise_exception('roles must\nalternate') }}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "TemplateSyntaxError at line 1"),
        ("ok\n\n{{ messages.foo.bar }}", "UndefinedError at line 3"),
        ("{{ messages[0].content + 1 }}", "TypeError at line 1"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% include '/etc/passwd' %}", "failed"),
        ("{{ range(10 ** 9) }}", "OverflowError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{{" + "(" * 20_000, "failed"),
        ("{% for i in range(10000) %}{{ 'x' * 1000 }}{% endfor %}", "more than 1000000 characters"),
    ],
)
def test_templates_that_fail(source: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        render_once(source)
    assert "\n" not in str(error.value)
    assert "plain prompt" in str(error.value)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 2 ** (2 ** 40) }}",
        "{{ 'a' * 10 ** 12 }}",
        "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{% set n = namespace(s=[]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}"
        "{{ n.s | tojson }}",
    ],
)
def test_templates_that_never_end_or_grow(source: str) -> None:
    template = ChatTemplate(source, TOKENIZER, seconds=1.0)
    start = time.monotonic()
    with pytest.raises(ConfigError, match=r"longer than 1 seconds|too much memory|MemoryError|OverflowError"):
        template.render(HI)
    assert time.monotonic() - start < 20
    template.close()


def test_it_works_again_after_a_failure() -> None:
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    template = ChatTemplate(
        "{% if messages[0].content == 'loop' %}" + loop + "{% endif %}ok", TOKENIZER, seconds=2.0
    )
    assert template.render(HI) == "ok"
    with pytest.raises(ConfigError):
        template.render([{"role": "user", "content": "loop"}])
    assert template.render(HI) == "ok"
    template.close()
    assert template.render(HI) == "ok"
    template.close()


def test_threads_share_a_template(plain: ChatTemplate) -> None:
    wrong: list[object] = []

    def work(n: int) -> None:
        for k in range(20):
            try:
                if plain.render([{"role": "user", "content": f"{n}.{k}"}]) != f"[user|{n}.{k}]":
                    wrong.append((n, k))
            except OutriderError as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
