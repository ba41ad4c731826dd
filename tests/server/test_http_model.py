"""The default model in the server, through the official client: what a user does first."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from outrider import LLM, SamplingParams
from tests.server.http_support import MODEL, Running

pytestmark = pytest.mark.model

HI = [{"role": "user", "content": "Name the capital of France."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def chat(model: Running, **arguments: Any) -> Any:
    with model.client() as client:
        given: dict[str, Any] = {
            "model": MODEL,
            "messages": HI,
            "temperature": 0,
            "max_tokens": 24,
            **arguments,
        }
        return client.chat.completions.create(**given).choices[0]


def test_chat(model: Running) -> None:
    expected = LLM.from_pipeline(model.pipeline).chat(HI, SamplingParams(temperature=0, max_tokens=24))[0]
    found = chat(model)
    assert found.message.content == expected.outputs[0].text
    assert "Paris" in found.message.content
    plain = chat(model, extra_body={"speculative": False})
    assert plain.message == found.message


def test_structured_output_and_tools(model: Running) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "large": {"type": "boolean"}},
        "required": ["city", "large"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    found = json.loads(chat(model, response_format=form, max_tokens=60).message.content)
    assert isinstance(found["city"], str)
    assert isinstance(found["large"], bool)
    called = chat(model, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_tokens=60)
    (call,) = called.message.tool_calls
    assert call.function.name == "weather"
    assert set(json.loads(call.function.arguments)) == {"city"}
    assert called.finish_reason == "tool_calls"


def test_many_clients_get_what_each_would_get_alone(model: Running) -> None:
    prompts = [f"{n} {n + 1} {n + 2} {n} {n + 1} {n + 2} {n}" for n in range(6)]

    def body(prompt: str) -> dict[str, Any]:
        return {
            "model": MODEL,
            "prompt": prompt,
            "max_tokens": 24,
            "seed": prompts.index(prompt),
            "temperature": 0.8,
        }

    with model.client() as client:
        alone = [client.completions.create(**body(p)).choices[0].text for p in prompts]

    async def together() -> list[str]:
        url = model.url + "/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

            async def one(number: int) -> str:
                if number % 2:
                    whole = await client.completions.create(**body(prompts[number]))
                    return str(whole.choices[0].text)
                stream = await client.completions.create(stream=True, **body(prompts[number]))
                return "".join([chunk.choices[0].text async for chunk in stream])

            return list(await asyncio.gather(*(one(n) for n in range(len(prompts)))))

    assert asyncio.run(together()) == alone
    assert len(set(alone)) == len(alone)
