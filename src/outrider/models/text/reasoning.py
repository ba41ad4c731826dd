"""Parts a model's thoughts from its answer, in a text that is whole or arrives in pieces.

Families mark their thoughts in different ways; `FORMATS` has each of them, and `format_of` chooses one by a
model's chat template and vocabulary, or by a name that vLLM's --reasoning-parser knows. gpt-oss writes
messages in channels (OpenAI's harmony format), which harmony.py reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from outrider.models.text.harmony import MARKS as HARMONY_MARKS
from outrider.models.text.harmony import HarmonyReader
from outrider.models.text.marks import first_mark, overlap

if TYPE_CHECKING:  # the command line needs the names of PARSERS only
    from outrider.models.text.tokenizer import Tokenizer

THINK, THOUGHT = "<think>", "</think>"
_TAIL = 16  # tokens of a prompt's end that may open the thoughts


Stage: TypeAlias = Literal["open", "thoughts", "answer"]  # see `stage_of`


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a family marks its thoughts.

    opens:   any of these begins the thoughts, at the start of an answer or at the end of its prompt.
    closes:  any of these ends them.
    wrapper: what may stand around the answer that follows, and is dropped: its first and its last mark.
    channels: the text consists of harmony's messages, and the marks above are theirs.
    """

    name: str
    opens: tuple[str, ...]
    closes: tuple[str, ...]
    wrapper: tuple[str, str] | None = None
    channels: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks that the text must show for its thoughts to be found."""
        return HARMONY_MARKS if self.channels else (*self.opens, *self.closes, *(self.wrapper or ()))


_THINK = ReasoningFormat("think", (THINK,), (THOUGHT,))
_HARMONY = ReasoningFormat("harmony", ("<|channel|>analysis<|message|>",), ("<|end|>",), channels=True)
_GEMMA = ReasoningFormat("gemma4", ("<|channel>thought",), ("<channel|>",))
_MISTRAL = ReasoningFormat("mistral", ("[THINK]",), ("[/THINK]",))
_SEED = ReasoningFormat("seed_oss", ("<seed:think>",), ("</seed:think>",))
_HUNYUAN = ReasoningFormat("hunyuan_a13b", (THINK,), (THOUGHT,), ("<answer>", "</answer>"))
_ERNIE = ReasoningFormat("ernie45", (THINK,), (THOUGHT,), ("<response>", "</response>"))
_GRANITE = ReasoningFormat(
    "granite",
    (THINK, "Here is my thought process:", "Here's my thought process:"),
    (THOUGHT, "Here is my response:", "Here's my response:"),
    ("<response>", "</response>"),
)
FORMATS = (_THINK, _HARMONY, _GEMMA, _MISTRAL, _SEED, _HUNYUAN, _ERNIE, _GRANITE)

# By the names of vLLM's --reasoning-parser, and of llama.cpp's --reasoning-format.
_OF_THINK = (
    *("deepseek_r1", "deepseek_v3", "deepseek_v31", "deepseek_v4", "glm45", "holo2", "kimi_k2", "minimax_m2"),
    *("nemotron_v3", "olmo3", "qwen3", "smollm3", "step3", "step3p5", "deepseek", "think"),
)
LEFT = ("none", "identity", "minimax_m2_append_think")  # thoughts stay in the text
PARSERS: dict[str, ReasoningFormat] = {
    **dict.fromkeys(_OF_THINK, _THINK),
    **{made.name: made for made in FORMATS},
    **dict.fromkeys(("openai_gptoss", "gpt_oss", "gpt-oss"), _HARMONY),
}
# The first text that a template's source has says its format.
_BY_TEMPLATE = (
    ("<|channel|>", _HARMONY),
    ("<|channel>", _GEMMA),
    ("[THINK]", _MISTRAL),
    ("<seed:think>", _SEED),
    ("my thought process", _GRANITE),
    ("<response>", _GRANITE),
    (THINK, _THINK),
    (THOUGHT, _THINK),
)


def format_of(
    template: str | None, parser: str | None = None, tokenizer: Tokenizer | None = None
) -> ReasoningFormat | None:
    """The format of a model's thoughts; None if it has none.

    template: source of its chat template.
    parser:   a name of PARSERS or LEFT; None and "auto" choose by the template, and after that by a
              vocabulary that has <think> and </think> as tokens.
    """
    if parser in LEFT:
        return None
    if parser not in (None, "auto"):
        return PARSERS[str(parser)]
    source = template or ""
    for text, made in _BY_TEMPLATE:
        if text in source and (text != "<response>" or THINK in source):
            return made
    has = tokenizer is not None and all(_is_token(tokenizer, mark) for mark in (THINK, THOUGHT))
    return _THINK if has else None


class ThoughtReader(Protocol):
    """Parts a text that arrives in pieces; how it is cut makes no difference."""

    @property
    def inside(self) -> bool:
        """Whether the text so far ends within thoughts."""

    def push(self, text: str) -> tuple[str, str]:
        """The new thoughts, and the new text after them."""

    def finish(self) -> tuple[str, str]:
        """What is still held back at the end of the text."""


def reader_after(
    made: ReasoningFormat, tokenizer: Tokenizer, prompt: Sequence[int], continued: str | None = None
) -> ThoughtReader:
    """The reader of an answer to a prompt, given as token ids. continued: the text of the message that the
    prompt ends with and that the answer goes on with, if there is one."""
    tail = tokenizer.decode(prompt[-_TAIL:], skip_special=False)
    if made.channels:
        return HarmonyReader.after(tail, continued=continued is not None)
    return ReasoningReader(made, inside=opened(made, tail, continued))


def stage_of(
    made: ReasoningFormat, tokenizer: Tokenizer, prompt: Sequence[int], continued: str | None = None
) -> Stage:
    """How far a prompt has come, for `reader_after`'s arguments: "open", the thoughts may begin; "thoughts",
    they have begun; "answer", they have ended."""
    tail = tokenizer.decode(prompt[-_TAIL:], skip_special=False)
    if made.channels:
        return "open" if continued is None else "answer"
    if opened(made, tail, continued):
        return "thoughts"
    return "answer" if continued is not None or tail.rstrip().endswith(made.closes) else "open"


def opened(made: ReasoningFormat, tail: str, continued: str | None = None) -> bool:
    """Whether a prompt, of which `tail` is the end, has opened the thoughts. A mark counts there only at the
    very end: a user may write about marks."""
    if tail.rstrip().endswith(made.opens):
        return True
    begun = (continued or "").lstrip()
    return begun.startswith(made.opens) and not any(mark in begun for mark in made.closes)


# Before, within and after the thoughts; within the answer, after its first mark if it has one.
State: TypeAlias = Literal["start", "inside", "after", "opened", "wrapped", "rest"]


class ReasoningReader:
    """Parts a text into the thoughts at its start and the rest. Blanks around the thoughts belong to neither.

    inside: the prompt has opened the thoughts already.
    """

    def __init__(self, made: ReasoningFormat = _THINK, *, inside: bool) -> None:
        self._format = made
        self._last = made.wrapper[1] if made.wrapper else ""
        self._state: State = "inside" if inside else "start"
        self._held = ""  # text that is not decided yet
        self._begun = False  # some thoughts were returned

    @property
    def inside(self) -> bool:
        return self._state == "inside"

    def push(self, text: str) -> tuple[str, str]:
        """The new thoughts, and the new text after them."""
        self._held += text
        reasoning = ""
        if self._state == "start":
            self._start()
        if self._state == "inside":
            reasoning = self._inside()
        if self._state in ("after", "opened"):
            self._after()
        if self._state == "wrapped":
            return reasoning, self._wrapped()
        if self._state != "rest":
            return reasoning, ""
        rest, self._held = self._held, ""
        return reasoning, rest

    def finish(self) -> tuple[str, str]:
        """What is still held back at the end of the text."""
        held, self._held = self._held, ""
        if self._state == "inside":
            held = held if self._begun else held.lstrip()
            return held.rstrip(), ""
        if self._state == "wrapped" and held.strip() == self._last:
            held = ""
        return "", held

    def _start(self) -> None:
        begun = self._held.lstrip()
        for mark in self._format.opens:
            if begun.startswith(mark):
                self._state, self._held = "inside", begun.removeprefix(mark)
                return
        if not any(mark.startswith(begun) for mark in self._format.opens):
            self._state = "rest"

    def _inside(self) -> str:
        """Thoughts that are decided."""
        at, mark = first_mark(self._held, self._format.closes)
        if mark:
            decided = self._held[:at].rstrip()
            self._state, self._held = "after", self._held[at + len(mark) :]
        else:
            keep = max(overlap(self._held, mark) for mark in self._format.closes)
            decided = self._held[: len(self._held) - keep].rstrip()
            self._held = self._held[len(decided) :]
        if not self._begun:
            decided = decided.lstrip()
        self._begun = self._begun or bool(decided)
        return decided

    def _after(self) -> None:
        """Between the thoughts and the answer."""
        self._held = self._held.lstrip()
        first = self._format.wrapper[0] if self._format.wrapper and self._state == "after" else None
        if first is not None and self._held.startswith(first):
            self._state, self._held = "opened", self._held.removeprefix(first).lstrip()
        elif first is not None and first.startswith(self._held):
            return
        if self._held:
            self._state = "wrapped" if self._state == "opened" else "rest"

    def _wrapped(self) -> str:
        """What is decided of an answer between two marks: all but blanks and the last mark at its end."""
        body = self._held.rstrip().removesuffix(self._last)
        size = len(body[: len(body) - overlap(body, self._last)].rstrip())
        decided, self._held = self._held[:size], self._held[size:]
        return decided


def _is_token(tokenizer: Tokenizer, text: str) -> bool:
    return len(tokenizer.encode(text, add_special=False)) == 1
