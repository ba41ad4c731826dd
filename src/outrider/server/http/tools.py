"""Tools of a request: which may be called, and their description in a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.server.http.errors import bad
from outrider.server.http.protocol import AllowedTools, ChatRequest, NamedTool, Tool


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request allows.

    tools:      those that may be called; () for none.
    described:  those that the prompt describes.
    forced:     the answer is calls and nothing else.
    named:      forced, and of one tool that the request names.
    parallel:   there may be several calls.
    restricted: some of the described tools may not be called.
    """

    tools: tuple[Tool, ...] = ()
    described: tuple[Tool, ...] = ()
    forced: bool = False
    named: bool = False
    parallel: bool = True
    restricted: bool = False

    @property
    def enforced(self) -> bool:
        """Whether a grammar is needed for what a model may call of its own accord."""
        return not self.forced and (self.restricted or any(tool.function.strict for tool in self.tools))


def tool_use(body: ChatRequest) -> ToolUse:
    """What a request's `tools`, `tool_choice` and `parallel_tool_calls` allow. Raises ApiError."""
    tools, choice = tuple(body.tools or ()), body.tool_choice
    if not tools and choice not in (None, "none", "auto"):
        raise bad("tool_choice needs tools", "tool_choice")
    if not tools or choice == "none":
        return ToolUse()
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise bad("two tools have the same name", "tools")
    parallel = body.parallel_tool_calls is not False
    if isinstance(choice, NamedTool):
        return ToolUse(_chosen(tools, {choice.called}), tools, forced=True, named=True, parallel=False)
    if isinstance(choice, AllowedTools):
        allowed, mode = choice.called
        chosen = _chosen(tools, set(allowed))
        if not chosen:
            raise bad('tool_choice allows no tool; use "none"', "tool_choice")
        restricted = len(chosen) < len(tools)
        return ToolUse(chosen, tools, mode == "required", parallel=parallel, restricted=restricted)
    return ToolUse(tools, tools, forced=choice == "required", parallel=parallel)


def _chosen(tools: Sequence[Tool], names: set[str]) -> tuple[Tool, ...]:
    """The tools of these names, each of which must be there. Raises ApiError."""
    there = {tool.function.name: tool for tool in tools}
    for name in sorted(names):
        if name not in there:
            raise bad(f"tool_choice names {name[:80]!r}; the tools are {', '.join(there)}", "tool_choice")
    return tuple(tool for tool in tools if tool.function.name in names)
