"""Claim `distribution` for two OpenAI-compatible servers: above temperature 0 both write the same texts as
often.

First tokens (answers of one token) come out of the prompt's pass; no drafter has a part in them. What drafts
and their acceptance do shows in texts of LENGTH tokens. A text's words, since its tokens are not known, are
compared place by place, and its beginnings as a whole. Two-sample G-tests compare each of these on every
prompt, and on all prompts together.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from outrider.bench.workloads import Item
from outrider.verify.claims import Claim, Progress
from outrider.verify.endpoint import EndpointError
from outrider.verify.g_tests import NamedTest, first_broken, held_words
from outrider.verify.server_samples import Drawing, Server, Texts
from outrider.verify.two_samples import TwoSamples, compare, together

LENGTH = 10  # tokens: that of the prompt's pass, a draft of 5, the one after it, and a few more
PLACES = 8  # words that are compared each by itself
BEGINNINGS = (2, 3)  # words of the beginnings
FIRST = "first token"
SHOWN = 40  # characters of an outcome
_WORD = re.compile(r"\s*(?:[A-Za-z0-9_]+|\S)|\s+")


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The samples of one prompt at one temperature: first tokens, and texts."""

    name: str
    firsts: Texts
    texts: Texts


def requests(items: Sequence[Item], temperatures: Sequence[float], samples: int) -> int:
    """How many requests `check` sends to each server."""
    return 2 * samples * len(items) * len(temperatures)


def check(
    drawing: Drawing, items: Sequence[Item], temperatures: Sequence[float], progress: Progress
) -> Claim:
    """Draw first tokens and texts of both servers, for each prompt and each temperature (above 0), and test
    them.

    Raises EndpointError, also when neither server ever wrote two different texts to a prompt.
    """
    drawing.drafts.begin()
    found = []
    for item, temperature in itertools.product(items, temperatures):
        name = f"{item.id}, temperature {temperature:g}"
        tick = partial(progress, f"distribution: {name}")
        firsts, texts = (drawing.draw(item.prompt, n, temperature, tick) for n in (1, LENGTH))
        found.append(_Drawn(name, firsts, texts))
    rigid = _rigid(drawing.pair, found)
    cases = 2 * requests(items, temperatures, drawing.samples)
    note = f"; {drawing.drafts.words()}" + "".join(
        f"; {server} answers a prompt with the same text whatever the seed: it ignores the temperature or "
        "answers from a cache"
        for server in rigid
    )
    held, detail = _tested(found)
    one, other = drawing.pair
    verdict = "" if held else " have different distributions"
    about = f"{one} and {other}{verdict}: {cases} samples of first tokens and of texts of {LENGTH} tokens"
    return Claim("distribution", held, cases, f"{about}, {detail}{note}")


def words(text: str) -> list[str]:
    """A text in pieces: letters and digits in a row, or any other character, with the space before it."""
    return _WORD.findall(text)


def outcomes(drawn: _Drawn) -> dict[str, Texts]:
    """What is compared, by its name; a text that has ended is "" from there on."""
    one, other = ([[*words(text), *[""] * PLACES] for text in texts] for texts in drawn.texts)
    found = {FIRST: drawn.firsts}
    for at in range(PLACES):
        found[f"word {at + 1}"] = [pieces[at] for pieces in one], [pieces[at] for pieces in other]
    for n in BEGINNINGS:
        found[f"first {n} words"] = ["".join(p[:n]) for p in one], ["".join(p[:n]) for p in other]
    return found


def _rigid(pair: tuple[Server, Server], found: Sequence[_Drawn]) -> list[str]:
    """The server that answered every prompt with one text only, if any. Raises EndpointError for two."""
    rigid = [
        str(server)
        for at, server in enumerate(pair)
        if all(len(set(drawn.texts[at])) == 1 for drawn in found)
    ]
    one, other = pair
    if not any(text for drawn in found for texts in drawn.texts for text in texts):
        advice = "" if one.chat else "; a model for chat wants --chat"
        raise EndpointError(f"{one} and {other} wrote nothing at all, so nothing is compared{advice}")
    if len(rigid) == 2:
        raise EndpointError(
            f"{one} and {other} each answer a prompt with the same text whatever the seed, so there is no "
            "distribution to compare: they ignore the temperature, answer from a cache, or have no choice"
        )
    return rigid


def _tested(found: Sequence[_Drawn]) -> tuple[bool, str]:
    """Whether all tests hold, and what they say."""
    parts: dict[str, list[TwoSamples]] = {}
    tests: list[NamedTest] = []
    examples: dict[str, str] = {}
    for drawn in found:
        for name, (one, other) in outcomes(drawn).items():
            part = compare(one, other, seed=len(tests))
            parts.setdefault(name, []).append(part)
            tests.append(NamedTest(f"{drawn.name}, {name}", together([part]), part.weight))
            examples[tests[-1].name] = _example(one, other)
    if len(found) > 1:
        tests += [
            NamedTest(f"all prompts together, {name}", together(each), sum(part.weight for part in each))
            for name, each in parts.items()
        ]
    count = f"{len(tests)} G-tests"
    if (broken := first_broken(tests)) is None:
        return True, f"{count}{held_words(tests)}"
    test, said = broken
    place = (
        "the first tokens, which no drafter writes, show no difference"
        if first_broken([test for test in tests if test.name.endswith(FIRST)]) is None
        else "the first tokens, which no drafter writes, differ already: compare models, prompts and filters"
    )
    return False, f"{count}: {said}{examples.get(test.name, '')}; {place}"


def _example(one: Sequence[str], other: Sequence[str]) -> str:
    """The outcome whose counts differ most for their size."""
    a, b = Counter(one), Counter(other)
    most = max(sorted(a | b), key=lambda outcome: (a[outcome] - b[outcome]) ** 2 / (a[outcome] + b[outcome]))
    return f", most of all for {most[:SHOWN]!r}: {a[most]} of {len(one)} and {b[most]} of {len(other)}"
