"""An agent of the package openai-agents, which speaks the Responses API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai
import pytest

from tests.server.dialect_support import THINKING, scripted
from tests.server.http_support import MODEL, Running, run_async, running, toy_pipeline
from tests.support.lazy import Lazy

if TYPE_CHECKING:
    import agents
else:
    agents = Lazy("agents")

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest.fixture(scope="module")
def thinking(roomy_file: Path) -> Iterator[Running]:
    with running(toy_pipeline(roomy_file), chat_template=THINKING) as made:
        yield made


@pytest.mark.parametrize("streamed", [False, True])
def test_an_agent_with_a_tool(thinking: Running, streamed: bool) -> None:
    agents.set_tracing_disabled(True)

    @agents.function_tool  # type: ignore[untyped-decorator]
    def weather(city: str) -> str:
        """Tells the weather of a city."""
        return f"sun in {city}"

    async def work() -> Any:
        async with openai.AsyncOpenAI(
            base_url=thinking.url + "/v1", api_key="none", max_retries=0, timeout=30
        ) as client:
            model = agents.OpenAIResponsesModel(model=MODEL, openai_client=client)
            agent = agents.Agent(name="reporter", instructions="be", model=model, tools=[weather])
            if not streamed:
                return (await agents.Runner.run(agent, "How is Paris?")).final_output
            result = agents.Runner.run_streamed(agent, "How is Paris?")
            deltas = [
                event.data.delta
                async for event in result.stream_events()
                if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
            ]
            assert "".join(deltas) == "Sunny."
            return result.final_output

    with scripted(thinking, f"<think>\nask\n</think>\n{CALL}", "Sunny.") as prompts:
        assert run_async(work()) == "Sunny."
    assert prompts[0] == "tools weather;[system|be][user|How is Paris?][assistant|"
    assert prompts[1] == (
        "tools weather;[system|be][user|How is Paris?]"
        '[assistant|(ask){weather {"city": "Paris"}}][tool|sun in Paris][assistant|'
    )
