"""Starts a child server and checks it, before anybody may use it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from outrider.engines.vllm.launch import Launch, Launcher
from outrider.engines.vllm.process import VllmError
from outrider.engines.vllm.self_check import Outcome, self_check
from outrider.engines.vllm.upstream import Upstream, UpstreamError, finished

logger = logging.getLogger("outrider")

SELF_CHECKS = ("refuse", "strict", "off")
DEATH_SECONDS = 5.0  # from a connection that breaks off to the end of its process
_WAY_OUT = "use --spec none, or --self-check off"


def started(
    launcher: Launcher,
    model: str,
    *,
    mode: str = SELF_CHECKS[0],
    seconds: float,
    stopped: Callable[[], bool] = lambda: False,
    say: Callable[[str], object] = logger.info,
) -> tuple[Launch, Outcome]:
    """A child that is ready, and the outcome of its self-check.

    model:   its name in the API. mode: one of SELF_CHECKS.
    seconds: in which it must be ready.
    stopped: asked while it starts; True gives up.
    say:     called with the command and the outcome, in a line each.
    Raises VllmError when it does not start, and where the outcome does not let it.
    """
    launch = _ready(launcher, seconds, stopped, say)
    try:
        outcome = _checked(launch, model, mode, stopped)
        say(str(outcome))
        if outcome.died:
            launch.child.stop()
            say("it is started once more, for requests at temperature 0")
            launch = _ready(launcher, seconds, stopped, say)
    except BaseException:
        launch.child.stop()
        raise
    return launch, outcome


def _ready(
    launcher: Launcher, seconds: float, stopped: Callable[[], bool], say: Callable[[str], object]
) -> Launch:
    launch = launcher()
    say(f"starting {launcher.version}: {launch.line}")
    launch.child.start()
    try:
        launch.child.wait_until_ready(seconds, stopped)
    except BaseException:
        launch.child.stop()
        raise
    return launch


def _checked(launch: Launch, model: str, mode: str, stopped: Callable[[], bool]) -> Outcome:
    """The outcome of the self-check. Raises VllmError where the server must not start, or has died."""
    if not launch.speculative:
        return Outcome("no speculation")
    if mode == "off":
        return Outcome("off", "what speculation does to texts is not checked")
    child = launch.child

    async def check() -> Outcome:
        work = asyncio.ensure_future(self_check(Upstream(child.url, child.key), model))
        while not work.done():
            await asyncio.wait({work}, timeout=0.1)
            if stopped():
                work.cancel()
                raise VllmError("stopped during the self-check")
        return await work

    try:
        outcome = finished(check())
    except UpstreamError as error:
        if child.ends_within(DEATH_SECONDS):
            raise VllmError(child.death("during the self-check")) from None
        return Outcome("not checked", str(error))
    if outcome.died and not child.ends_within(DEATH_SECONDS):
        return Outcome("not checked", outcome.detail)  # it was the connection
    if outcome.state == "broken" or (outcome.refuses_sampling and mode == "strict"):
        raise VllmError(f"{outcome}; {_WAY_OUT}")
    return outcome
