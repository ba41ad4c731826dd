"""Grammars that hold for the answer and not for the thoughts before it, in Lark's syntax.

Thoughts are part of the grammar, as any text up to their closing mark. So the grammar begins at the right
place in the middle of a draft too, and nothing outside of it has to know when thoughts end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from outrider.models.text.harmony import CHANNEL, END, MESSAGE, START
from outrider.models.text.reasoning import ReasoningFormat, Stage

_BLANKS = r"/[ \t\r\n]{1,16}/"  # a model may not go on with blanks for ever
_TEXT = r"/(.|\n)*/"
# In Lark: texts, regexes and comments, which stay as they are, and the rule that is renamed.
_START_RULE = re.compile(
    r'"(?:\\.|[^"\\])*"|//[^\n]*|/(?:\\.|[^/\\\n])+/|#[^\n]*|(?<![\w-])start(?![\w-])', re.DOTALL
)


def deferred(
    grammar: str,
    made: ReasoningFormat,
    stage: Stage,
    marks: Mapping[str, int],
    special: Iterable[int],
) -> str:
    """A grammar of thoughts and then of `grammar`, which is in Lark's syntax.

    stage:   how far the prompt has come.
    marks:   the ids of those of the format's marks that are special tokens.
    special: ids of the special tokens but for those that end a text; any of them may be in thoughts.
    """
    if stage == "answer":
        return grammar
    answer = _START_RULE.sub(lambda found: "outrider_answer" if found[0] == "start" else found[0], grammar)
    head = _channels(marks) if made.channels else _thoughts(made, stage, marks, special)
    return "\n".join([*head, answer])


def in_final(grammar: str, marks: Mapping[str, int]) -> str:
    """A grammar of a message in harmony's final channel, whose text has the form of `grammar`."""
    text = _START_RULE.sub(lambda found: "outrider_text" if found[0] == "start" else found[0], grammar)
    return f"start: {final_head(marks)} outrider_text\n{text}"


def final_head(marks: Mapping[str, int]) -> str:
    """What comes before the text of an answer in harmony's format, as a part of a Lark rule."""
    return f'{mark_of(CHANNEL, marks)} "final" {mark_of(MESSAGE, marks)}'


def mark_of(mark: str, marks: Mapping[str, int]) -> str:
    """A mark in a Lark rule: a special token, or text."""
    return f"<[{marks[mark]}]>" if mark in marks else json.dumps(mark)


def ranges(ids: Sequence[int]) -> str:
    """Sorted ids as llguidance writes sets of tokens: `3,7-9`."""
    runs: list[list[int]] = []
    for token in ids:
        if runs and runs[-1][1] == token - 1:
            runs[-1][1] = token
        else:
            runs.append([token, token])
    return ",".join(f"{low}-{high}" if low < high else str(low) for low, high in runs)


def _channels(marks: Mapping[str, int]) -> list[str]:
    """Rules for harmony's messages before the answer, which begins with a head of its own."""
    channel, message = mark_of(CHANNEL, marks), mark_of(MESSAGE, marks)
    rules = ["start: outrider_message* outrider_answer"]
    body = f'{channel} ("analysis" | "commentary") {message}'
    if END in marks:
        ending = f"OUTRIDER_TEXT {mark_of(END, marks)}"
        rules.append(f"OUTRIDER_TEXT: {_TEXT}")
    else:
        ending = "outrider_end"
        rules.append(f"outrider_end[lazy]: {_up_to([END])}")
    return [*rules, f'outrider_message: {body} {ending} {mark_of(START, marks)} "assistant"']


def _thoughts(
    made: ReasoningFormat, stage: Stage, marks: Mapping[str, int], special: Iterable[int]
) -> list[str]:
    """Rules for thoughts between two marks."""
    then = "outrider_blanks? outrider_answer"
    opened = f"outrider_thoughts {then}"
    if stage == "open":
        opens = " | ".join(mark_of(mark, marks) for mark in made.opens)
        start = f"start: ({opens}) {opened} | outrider_answer"
    else:
        start = f"start: {opened}"
    rules = [start, f"outrider_blanks: {_BLANKS}"]
    ways = []
    if plain := [mark for mark in made.closes if mark not in marks]:
        ways.append("outrider_close")
        rules.append(f"outrider_close[lazy]: {_up_to(plain)}")
    if closes := sorted(marks[mark] for mark in made.closes if mark in marks):
        others = ranges(sorted({*special} - {*closes}))
        between = f"(OUTRIDER_TEXT <[{others}]>)* " if others else ""
        ways.append(f"{between}OUTRIDER_TEXT <[{ranges(closes)}]>")
        rules.append(f"OUTRIDER_TEXT: {_TEXT}")
    return [*rules, "outrider_thoughts: " + " | ".join(ways)]


def _up_to(marks: Sequence[str]) -> str:
    """A regex of any text up to one of these marks."""
    ends = "|".join(re.escape(mark).replace("/", r"\/").replace("\\ ", " ") for mark in marks)
    return rf"/(.|\n)*({ends})/"
