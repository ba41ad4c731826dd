"""The default model through the clients of each dialect: one question, one answer, and a tool call."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import ollama
import pytest

from outrider import LLM, SamplingParams
from tests.server.http_support import MODEL, Running
from tests.support.lazy import Lazy

if TYPE_CHECKING:
    import anthropic
else:
    anthropic = Lazy("anthropic")

pytestmark = pytest.mark.model

HI: Any = [{"role": "user", "content": "Name the capital of France."}]
SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}


def test_all_dialects_give_the_same_text(model: Running) -> None:
    expected = LLM.from_pipeline(model.pipeline).chat(HI, SamplingParams(temperature=0, max_tokens=24))[0]
    text = expected.outputs[0].text
    assert "Paris" in text
    with anthropic.Anthropic(base_url=model.url, api_key="none", max_retries=0) as client:
        message: Any = client.messages.create(
            model=MODEL, max_tokens=24, messages=HI, extra_body={"temperature": 0}
        )
        assert message.content[0].text == text
    with model.client() as openai_client:
        response = openai_client.responses.create(
            model=MODEL, input=HI[0]["content"], max_output_tokens=24, temperature=0
        )
        assert response.output_text == text
    with ollama.Client(host=model.url) as ollama_client:
        answer: Any = ollama_client.chat(MODEL, HI, options={"num_predict": 24, "temperature": 0})
        assert answer.message.content == text
    prompt = model.post("/apply-template", {"messages": HI}).json()["prompt"]
    body = {"prompt": prompt, "n_predict": 24, "temperature": 0}
    assert model.post("/completion", body).json()["content"] == text


def test_a_tool_is_called(model: Running) -> None:
    tool = {"name": "weather", "description": "Tells the weather of a city.", "input_schema": SCHEMA}
    question: Any = [{"role": "user", "content": "How is the weather in Paris?"}]
    with anthropic.Anthropic(base_url=model.url, api_key="none", max_retries=0) as client:
        given: Any = {"model": MODEL, "max_tokens": 60, "tools": [tool], "extra_body": {"temperature": 0}}
        choice: Any = {"type": "any", "disable_parallel_tool_use": True}
        with client.messages.stream(messages=question, tool_choice=choice, **given) as events:
            message: Any = events.get_final_message()
        (call,) = message.content
        assert (message.stop_reason, call.name, set(call.input)) == ("tool_use", "weather", {"city"})
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny, 20 degrees"}
        more: Any = [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
        assert client.messages.create(messages=[*question, *more], **given).content
    function: Any = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}
    with model.client() as openai_client:
        response = openai_client.responses.create(
            model=MODEL,
            input=question,
            tools=[function],
            tool_choice="required",
            parallel_tool_calls=False,
            max_output_tokens=60,
            temperature=0,
        )
    (item,) = response.output
    assert item.type == "function_call"
    assert json.loads(item.arguments) == call.input
