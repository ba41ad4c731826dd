"""Conversations to prompts, with the options of vLLM's `chat`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from outrider.errors import ConfigError, PromptError
from outrider.models.text.conversation import MAX_TEMPLATES, Conversations
from tests.support.past_arguments import PAST_ARGUMENTS
from tests.unit.models.tokenizers_for_tests import tokenizer

TOKENIZER = tokenizer("bpe-qwen2")
SOURCE = (
    "{% for m in messages %}[{{ m.role }}|{{ m.content }}"
    "{% for c in m.tool_calls or [] %}|{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}]"
    "{% endfor %}{% if add_generation_prompt %}[assistant|{% endif %}"
)
WITH_TOOLS = SOURCE + "{% for t in tools or [] %}<{{ t.function.name }}>{% endfor %}"
HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def plain() -> Iterator[Conversations]:
    made = Conversations(SOURCE, TOKENIZER)
    yield made
    made.close()


def _call(arguments: Any) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def test_the_models_own_template(plain: Conversations) -> None:
    assert plain.render(HI) == "[user|hi][assistant|"
    assert plain.render(HI, add_generation_prompt=False) == "[user|hi]"
    assert plain.render([{"role": "developer", "content": "be"}, *HI]).startswith("[system|be]")


def test_another_template_and_variables(plain: Conversations) -> None:
    source = "{{ mood }}{{ documents[0].t }}{{ messages | length }}"
    found = plain.render(HI, chat_template=source, variables={"mood": "calm"}, documents=[{"t": 5}])
    assert found == "calm51"
    for number in range(2 * MAX_TEMPLATES):  # those of earlier calls are dropped
        assert plain.render(HI, chat_template=f"{{{{ {number} }}}}") == str(number)
    assert len(plain._templates) <= MAX_TEMPLATES + 1
    assert plain.render(HI) == "[user|hi][assistant|"


def test_contents_as_parts(plain: Conversations) -> None:
    source = (
        "{% for m in messages %}{% for p in m.content %}({{ p.type }}:{{ p.text }}){% endfor %}{% endfor %}"
    )
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    for form, expected in (("openai", "(text:a\nb)"), ("string", "(:)(:)(:)"), ("auto", "(:)(:)(:)")):
        assert plain.render(parts, chat_template=source, content_format=form) == expected
    assert plain.render(parts) == "[user|a\nb][assistant|"


@pytest.mark.parametrize(("arguments", "shown"), PAST_ARGUMENTS)
def test_arguments_of_past_calls(plain: Conversations, arguments: Any, shown: str) -> None:
    found = plain.render([*HI, _call(arguments)], chat_template=WITH_TOOLS, add_generation_prompt=False)
    assert found == f"[user|hi][assistant|None|add {shown}]"


def test_tools(plain: Conversations) -> None:
    assert plain.render(HI, chat_template=WITH_TOOLS, tools=[TOOL]).endswith("<add>")
    assert plain.render(HI, chat_template=WITH_TOOLS, tools=[]) == "[user|hi][assistant|"
    in_words = plain.render(HI, tools=[TOOL])
    assert in_words.startswith("[system|You can call functions.")
    assert '"name": "add"' in in_words
    past = plain.render([*HI, _call('{"a": 1}'), {"role": "tool", "content": "2"}])
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>' in past
    assert "<tool_response>\n2\n</tool_response>" in past


def test_a_template_for_tools_is_taken_with_tools() -> None:
    made = Conversations(
        "{{ messages[0].content }}", TOKENIZER, {"tool_use": "{{ tools[0].function.name }}", "rag": "rag"}
    )
    assert made.render(HI) == "hi"
    assert made.render(HI, tools=[TOOL]) == "add"
    assert made.render(HI, tools=[TOOL], chat_template="{{ tools | length }}") == "1"
    made.close()


@pytest.mark.parametrize("text", ["It is", "It is\n", "It is \n\n", "<x>", ""])
def test_a_message_is_continued_where_it_ends(plain: Conversations, text: str) -> None:
    messages = [*HI, {"role": "assistant", "content": text}]
    options: Any = {"continue_final_message": True, "add_generation_prompt": False}
    assert plain.render(messages, **options) == f"[user|hi][assistant|{text}"
    parts: list[Any] = [*HI, {"role": "assistant", "content": [{"type": "text", "text": text}]}]
    assert plain.render(parts, **options) == f"[user|hi][assistant|{text}"
    trims = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}"
    assert plain.render(messages, chat_template=trims, **options) == f"[hi][{text}"


@pytest.mark.parametrize(
    ("messages", "options", "error", "words"),
    [
        ("hi", {}, PromptError, "list of"),
        ([], {}, PromptError, "empty"),
        (["hi"], {}, PromptError, "message 0 is a str"),
        ([{"content": "a"}], {}, PromptError, "no role"),
        ([{"role": "user"}], {}, PromptError, "no content"),
        ([{"role": "user", "content": 7}], {}, PromptError, "type int"),
        ([{"role": "user", "content": b"a"}], {}, PromptError, "type bytes"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], {}, PromptError, "image_url"),
        ([{"role": "tool", "content": [7]}], {}, PromptError, "type 'int'; only text"),
        ([*HI, {"role": "assistant", "tool_calls": "x"}], {}, PromptError, "not a list"),
        ([*HI, {"role": "assistant", "tool_calls": [{}]}], {}, PromptError, "without function.name"),
        (HI, {"content_format": "parts"}, ConfigError, "auto, string, openai, not 'parts'"),
        (HI, {"continue_final_message": True}, ConfigError, "add add_generation_prompt=False"),
        (HI, {"tools": TOOL}, PromptError, "must be a list"),
        (HI, {"tools": [{"name": "f"}]}, PromptError, "tool 0 is not of the form"),
        (HI, {"variables": {"messages": 1}}, ConfigError, "'messages'"),
        (HI, {"variables": [1]}, ConfigError, "mapping, not list"),
        (HI, {"chat_template": "template.jinja"}, ConfigError, "text of a jinja2 template"),
        (HI, {"chat_template": "{{ raise_exception('no\nway') }}"}, PromptError, "no way"),
        (HI, {"chat_template": "{% for %}"}, ConfigError, "template failed"),
        (HI, {"chat_template": "{{ 1 }}", "continue_final_message": True, "add_generation_prompt": False},
         PromptError, "leaves the last message out"),
        (HI, {"variables": {"x": object()}}, PromptError, "JSON"),
    ],
)  # fmt: skip
def test_what_is_refused(
    plain: Conversations, messages: Any, options: dict[str, Any], error: Any, words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        plain.render(messages, **options)
    assert "\n" not in str(caught.value)


def test_no_template() -> None:
    none = Conversations(None, TOKENIZER)
    with pytest.raises(ConfigError, match="no chat template: give a plain prompt"):
        none.render(HI)
    assert none.render(HI, chat_template="{{ messages[0].content }}") == "hi"
    none.close()
