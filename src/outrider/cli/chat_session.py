"""A conversation of `outrider chat`: its messages, its commands, and what is said about an answer.

Nothing here knows the terminal or the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from outrider.cli.colours import COLOURS, DIM, RESET, shown
from outrider.decoding.sampling.params import SamplingParams
from outrider.decoding.sampling.rng import derive_seed
from outrider.errors import ConfigError, nearest
from outrider.models.text.reasoning import ThoughtReader
from outrider.outputs import Chunk

FORMAT, VERSION = "outrider-chat", 1
MAX_BYTES = 16 << 20  # of a saved conversation
BLOCK = '"""'
HINT = "/help lists the commands; Ctrl-C stops an answer, Ctrl-D ends the chat"
# All control characters but newline and tab. A model's text must not command the terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Next(Enum):
    """What the chat does after a line."""

    READ = "read the next line"
    ANSWER = "let the model answer"
    QUIT = "end"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a line leads to, and what is said about it."""

    next: Next = Next.READ
    text: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the model.

    tokens, tokens_per_s: generated, and how fast (None for too few).
    context:     tokens of prompt and answer.
    speculation: whether it was on.
    speedup:     over plain decoding, as the controller measured it; None where it keeps no account.
    stopped:     by Ctrl-C.
    full:        the context's end or the limit of tokens was reached.
    """

    text: str
    tokens: int
    tokens_per_s: float | None
    context: int
    speculation: bool
    speedup: float | None = None
    stopped: bool = False
    full: bool = False


@dataclass(slots=True)
class Session:
    """A conversation and its settings.

    params:      for every answer; with a seed, each answer has one derived from it.
    system:      the system's message.
    switchable:  whether speculation can be turned on and off.
    max_context: tokens that the context holds.
    rates:       tokens per second of the last answers, with speculation (True) and without.
    retries:     answers that were asked for again.
    thoughts:    what parts the thoughts of the answer that is being written, which are shown dimmed; None
                 shows all alike.
    """

    params: SamplingParams
    system: str | None = None
    model: str = ""
    max_context: int = 0
    switchable: bool = True
    speculation: bool = True
    colors: bool = False
    messages: list[dict[str, str]] = field(default_factory=list)
    answers: int = 0
    retries: int = 0
    thoughts: Callable[[], ThoughtReader | None] = lambda: None
    last: Answer | None = None
    rates: dict[bool, float] = field(default_factory=dict)

    # --- What the model is asked -------------------------------------------------------------------

    def conversation(self) -> list[dict[str, str]]:
        """All messages, the system's first."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *self.messages]

    def answer_params(self) -> SamplingParams:
        """The parameters of the next answer."""
        if self.params.seed is None:
            return self.params
        return replace(self.params, seed=derive_seed(self.params.seed, self.answers))

    @property
    def salt(self) -> str:
        """Separates an answer from the earlier ones to the same message, in which a lookup would find it:
        that would be no measure of what speculation gains."""
        return f"chat {self.retries}"

    def take(self, text: str) -> Outcome:
        """A message or a command."""
        if not text.strip():
            return Outcome()
        if text.startswith("/"):
            return self._command(text)
        self.messages.append({"role": "user", "content": text})
        return Outcome(Next.ANSWER)

    def answered(self, answer: Answer) -> None:
        """The model has answered, perhaps not to the end."""
        self.messages.append({"role": "assistant", "content": answer.text})
        self.answers += 1
        self.last = answer
        if answer.tokens_per_s is not None:
            self.rates[answer.speculation] = answer.tokens_per_s

    def unanswered(self) -> None:
        """The last message could not be answered: it is taken back."""
        if self.messages and self.messages[-1]["role"] == "user":
            self.messages.pop()

    # --- What is shown -----------------------------------------------------------------------------

    def painted(self, chunk: Chunk) -> str:
        """A piece of an answer, in the colour of its source if that is wanted, and dimmed in thoughts."""
        text = shown(replace(chunk, text=_CONTROL.sub("", chunk.text)), self.colors)
        if (reader := self.thoughts()) is None:
            return text
        before = reader.inside
        reader.push(chunk.text)
        return f"{DIM}{text}{RESET}" if text and (before or reader.inside) else text

    def report(self, answer: Answer) -> str:
        """One line about an answer: tokens, their rate, and what speculation gained."""
        parts = [f"{answer.tokens} tokens"]
        if answer.tokens_per_s is not None:
            parts.append(f"{answer.tokens_per_s:.1f} tokens/s")
        parts.append(self.speed(answer))
        if answer.stopped:
            parts.append("stopped")
        elif answer.full:
            parts.append("cut off at the limit of tokens")
        return ", ".join(parts)

    def speed(self, answer: Answer | None) -> str:
        """What speculation gains: against the last plain answer, else as the controller measured it."""
        if answer is not None and not answer.speculation:
            return "speculation off"
        if len(self.rates) == 2:
            return f"×{self.rates[True] / self.rates[False]:.2f} as fast as with speculation off"
        if answer is not None and answer.speedup is not None:
            return f"×{answer.speedup:.2f} as fast as plain decoding would have been"
        return "speculation on"

    def status(self) -> str:
        """The line below the input."""
        speed = f"speculation {'on' if self.speculation else 'off'}"
        if self.speculation and self.last is not None and self.last.speedup is not None:
            speed += f" ×{self.last.speedup:.2f}"
        used = 0 if self.last is None else self.last.context
        temperature = f"temperature {self.params.temperature:g}"
        return f" {self.model} · {speed} · {temperature} · {used} of {self.max_context} tokens"

    # --- Commands ----------------------------------------------------------------------------------

    def _command(self, text: str) -> Outcome:
        name, _, argument = text.partition(" ")
        known = COMMANDS.get(_SHORT.get(name, name))
        if known is None:
            return Outcome(text=f"there is no command {name}{nearest(name, COMMANDS)}; /help lists them")
        try:
            return known.run(self, argument.strip())
        except ConfigError as error:
            return Outcome(text=str(error))

    def _help(self, _: str) -> Outcome:
        rows = [f"  {name + ' ' + each.argument:<24} {each.help}" for name, each in COMMANDS.items()]
        return Outcome(text="\n".join([*rows, *_HELP]))

    def _system(self, text: str) -> Outcome:
        if not text:
            return Outcome(text=f"system: {self.system}" if self.system else "there is no system message")
        self.system = None if text == "none" else text
        return Outcome(text="set; it counts from the next answer on")

    def _regenerate(self, _: str) -> Outcome:
        while self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        if not self.messages:
            return Outcome(text="there is nothing to answer yet")
        self.retries += 1
        return Outcome(Next.ANSWER)

    def _save(self, name: str) -> Outcome:
        if not name:
            raise ConfigError("/save needs the name of a file")
        save(self, Path(name).expanduser())
        return Outcome(text=f"saved to {name}")

    def _load(self, name: str) -> Outcome:
        if not name:
            raise ConfigError("/load needs the name of a file")
        load(self, Path(name).expanduser())
        return Outcome(text=f"{len(self.messages)} messages from {name}")

    def _temperature(self, text: str) -> Outcome:
        if text:
            try:
                value = float(text)
            except ValueError:
                raise ConfigError(f"/temperature needs a number, not {text!r}") from None
            self.params = replace(self.params, temperature=value)
        return Outcome(text=f"temperature {self.params.temperature:g}")

    def _speculation(self, text: str) -> Outcome:
        if text and not self.switchable:
            raise ConfigError("the chat was begun without a drafter (--spec none), so it stays off")
        self.speculation = _switch("/speculation", text, self.speculation)
        state = "on" if self.speculation else "off"
        measured = [
            f"{'on' if on else 'off'}: {rate:.1f} tokens/s" for on, rate in sorted(self.rates.items())
        ]
        if len(self.rates) == 2:
            measured.append(f"×{self.rates[True] / self.rates[False]:.2f}")
        return Outcome(text="; ".join([f"speculation is {state}", *measured]))

    def _colors(self, text: str) -> Outcome:
        self.colors = _switch("/colors", text, not self.colors if not text else self.colors)
        if not self.colors:
            return Outcome(text="colors are off")
        legend = ", ".join(f"{COLOURS[kind]}{kind}{RESET}" for kind in COLOURS)
        return Outcome(text=f"colors are on: {legend} (the last two are the model's own)")

    def _clear(self, _: str) -> Outcome:
        self.messages, self.last = [], None
        return Outcome(text="a new conversation begins")

    def _quit(self, _: str) -> Outcome:
        return Outcome(Next.QUIT)


@dataclass(frozen=True, slots=True)
class Command:
    """A command's argument, what it does in words, and how."""

    argument: str
    help: str
    run: Callable[[Session, str], Outcome]


COMMANDS = {
    "/help": Command("", "show this", Session._help),
    "/system": Command("[TEXT]", "show or set the system's message; none takes it away", Session._system),
    "/regenerate": Command("", "answer the last message again", Session._regenerate),
    "/save": Command("FILE", "save the conversation", Session._save),
    "/load": Command("FILE", "go on with a saved one", Session._load),
    "/temperature": Command("[T]", "show or set the temperature", Session._temperature),
    "/speculation": Command("[on|off]", "turn speculation on or off, and compare", Session._speculation),
    "/colors": Command("[on|off]", "show where each token came from", Session._colors),
    "/clear": Command("", "begin a new conversation", Session._clear),
    "/quit": Command("", "end the chat", Session._quit),
}
_SHORT = {"/?": "/help", "/exit": "/quit", "/bye": "/quit", "/q": "/quit", "/temp": "/temperature",
          "/again": "/regenerate", "/retry": "/regenerate", "/regen": "/regenerate", "/color": "/colors",
          "/colours": "/colors", "/read": "/load", "/new": "/clear", "/spec": "/speculation"}  # fmt: skip
_HELP = (
    'A line that ends in \\ goes on in the next one; so do all lines between """ and """.',
    "In a terminal, Alt-Enter begins a new line. Ctrl-C stops an answer, Ctrl-D ends the chat.",
)


class MessageReader:
    """Puts lines together to messages: a line that ends in a backslash goes on in the next one, and a block
    between triple quotes is one message."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._block = False

    @property
    def waiting(self) -> bool:
        """Whether a message has begun and is not complete."""
        return self._block or bool(self._lines)

    def feed(self, line: str) -> str | None:
        """The message that the line completes, or None."""
        if not self.waiting and line.startswith(BLOCK):
            self._block, line = True, line[len(BLOCK) :]
            if not line:
                return None
        if self._block:
            if not line.endswith(BLOCK):
                self._lines.append(line)
                return None
            line, self._block = line[: -len(BLOCK)], False
            return self._done([line] if line else [])
        if line.endswith("\\"):
            self._lines.append(line[:-1])
            return None
        return self._done([line])

    def rest(self) -> str:
        """What there is of a message when the input ends."""
        self._block = False
        return self._done([])

    def _done(self, last: list[str]) -> str:
        text = "\n".join([*self._lines, *last])
        self._lines = []
        return text


def save(session: Session, path: Path) -> None:
    """Write a conversation to a file; another kind of file is not replaced. Raises ConfigError."""
    if path.exists():
        _document(path)  # raises for what is no saved conversation
    document = {"format": FORMAT, "version": VERSION, "model": session.model, "system": session.system,
                "temperature": session.params.temperature, "messages": session.messages}  # fmt: skip
    fresh = path.with_name(path.name + ".tmp")
    try:
        fresh.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", "utf-8")
        fresh.replace(path)
    except (OSError, UnicodeEncodeError) as error:
        fresh.unlink(missing_ok=True)
        reason = error.strerror if isinstance(error, OSError) else "a message is not Unicode"
        raise ConfigError(f"{str(path)!r} cannot be written: {reason}") from None


def load(session: Session, path: Path) -> None:
    """Take the conversation, the system's message and the temperature from a file. Raises ConfigError, and
    then nothing is taken."""
    document = _document(path)
    messages, system, temperature = (document.get(key) for key in ("messages", "system", "temperature"))
    right = isinstance(messages, list) and all(
        isinstance(message, dict)
        and message.keys() == {"role", "content"}
        and message["role"] in ("user", "assistant")
        and isinstance(message["content"], str)
        for message in messages
    )
    if not right or not (system is None or isinstance(system, str)):
        raise ConfigError(f"{str(path)!r} is damaged: its messages are not a conversation's")
    if temperature is not None:
        session.params = replace(session.params, temperature=temperature)
    session.messages, session.system, session.last = list(messages or ()), system, None


def _document(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        document = json.loads(text[:MAX_BYTES])
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        document = None
    if (
        not isinstance(document, dict)
        or document.get("format") != FORMAT
        or document.get("version") != VERSION
    ):
        raise ConfigError(f"{str(path)!r} is no saved chat")
    return document


def _switch(name: str, text: str, now: bool) -> bool:
    if not text:
        return now
    if text not in ("on", "off"):
        raise ConfigError(f"{name} takes on or off, not {text!r}")
    return text == "on"
