"""Claim `identity` for two OpenAI-compatible servers: the same greedy texts."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.bench.workloads import Item
from outrider.verify.claims import Claim, Progress, bound_words, listed
from outrider.verify.endpoint import Answer, Endpoint, EndpointError
from outrider.verify.identity import first_difference

SNIPPET_CHARS = 24  # characters shown before and after a difference


def check(
    one: Endpoint, other: Endpoint, items: Sequence[Item], max_tokens: int, progress: Progress
) -> Claim:
    """Ask both servers every prompt at temperature 0 and compare texts, and tokens where both report them.

    A prompt that differs is sent once more, to find out whether a server is not deterministic. A prompt to
    which neither writes anything shows nothing, and is not counted.
    Raises EndpointError, also when no prompt got a text.
    """
    differences = []
    characters = by_token = empty = 0
    for item in items:
        answers = []
        for server in (one, other):
            progress(f"identity: {item.id}, {server}")
            answers.append(server.complete(item.prompt, max_tokens))
        if not answers[0].text and not answers[1].text:
            empty += 1
            continue
        characters += len(answers[0].text)
        by_token += None not in (answers[0].tokens, answers[1].tokens)
        if (difference := compare(*answers)) is not None:
            again = [s.complete(item.prompt, max_tokens) for s in (one, other)]
            unsteady = [str(s) for s, a, b in zip((one, other), answers, again, strict=True) if compare(a, b)]
            note = f" ({' and '.join(unsteady)} answered differently when asked again)" if unsteady else ""
            differences.append(f"{item.id} {difference}{note}")
    count = len(items) - empty
    advice = "" if one.chat else "; a model for chat wants --chat"
    if not count:
        raise EndpointError(f"{one} and {other} wrote nothing at all, so nothing is compared{advice}")
    left_out = f"; {empty} more got empty texts and are not counted{advice}" if empty else ""
    if differences:
        detail = f"{len(differences)} of {count} texts differ: {listed(differences)}{left_out}"
        return Claim("identity", False, count, detail)
    detail = (
        f"{count} texts of up to {max_tokens} tokens, {characters} characters ({by_token} compared by token, "
        f"too): {one} and {other} answer the same at temperature 0; {bound_words(count, 'texts')}{left_out}"
    )
    return Claim("identity", True, count, detail)


def compare(one: Answer, other: Answer) -> str | None:
    """Where two answers part, in words; None when they do not."""
    at = first_difference(one.text, other.text)
    if at is not None:
        return f"at character {at}: {_around(one.text, at)} and {_around(other.text, at)}"
    if one.tokens is None or other.tokens is None:
        return None
    at = first_difference(one.tokens, other.tokens)
    if at is None:
        return None
    a, b = (repr(t[at]) if at < len(t) else "the end" for t in (one.tokens, other.tokens))
    return f"in the tokens of one text: token {at} is {a} and {b}"


def _around(text: str, at: int) -> str:
    """The text around a difference, with the difference marked and truncation shown."""
    start, end = max(0, at - SNIPPET_CHARS), min(len(text), at + SNIPPET_CHARS)
    head, tail = "…" if start else "", "…" if end < len(text) else ""
    return repr(f"{head}{text[start:at]}⟦{text[at : at + 1]}⟧{text[at + 1 : end]}{tail}")
