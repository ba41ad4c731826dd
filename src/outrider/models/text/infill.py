"""The prompt of llama.cpp's /infill: other files, then the texts before and after the gap, as much of each as
has room. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.models.text.fim import FimTokens, arranged

# llama.cpp's logical batch (n_batch), in tokens: what the texts around the gap may take of the context.
WINDOW = 2048
_OUTPUT = 256  # tokens that are left for the output where its length is not limited
# llama.cpp does not know the names of the repository and of the file either.
_REPOSITORY, _FILE = "myproject\n", "filename\n"
_SNIPPET = "\n\n--- snippet ---\n\n"  # before another file, for a model without a token for that


@dataclass(frozen=True, slots=True)
class Room:
    """Tokens that the parts of a prompt may take; of a longer part, what is nearest to the gap is kept.

    before: the text before the gap, without the line at the gap.
    after:  the text after it, and the line at the gap.
    others: other files, and the marks and names before them.
    """

    before: int
    after: int
    others: int

    @staticmethod
    def of(context: int, output: int | None) -> Room:
        """llama.cpp's shares of a context. output: most tokens that are to be written; None for no limit."""
        left = max(1, min(context // 4, _OUTPUT if output is None else output))
        window = max(0, min(WINDOW, context - left - 3))  # the marks, and bos
        quarter = window // 4
        return Room(3 * quarter, max(0, quarter - 2), max(0, context - window - 2 * left - 3))


def infill_prompt(
    tokens: FimTokens,
    encode: Callable[[str], Sequence[int]],
    *,
    before: Sequence[int],
    line: Sequence[int],
    after: Sequence[int],
    others: Sequence[tuple[str, str]],
    room: Room,
    bos: Sequence[int] = (),
) -> list[int]:
    """The ids of a prompt, in llama.cpp's order: other files, bos, and the texts around the gap.

    encode: the ids of a text, without special tokens.
    before: ids of the text before the gap; line: of what is behind it, up to the gap; after: of the rest.
    others: names and texts of other files, the most important last.
    """
    near = list(before)[max(0, len(before) - room.before) :] + list(line)
    rest = list(after)[: max(0, room.after - len(line))]
    return [*_other_files(tokens, encode, others, room.others), *bos, *arranged(tokens, near, rest)]


def _other_files(
    tokens: FimTokens, encode: Callable[[str], Sequence[int]], others: Sequence[tuple[str, str]], room: int
) -> list[int]:
    """The end of the part with other files, which has room for so many tokens."""
    found = [] if tokens.file is None else [tokens.file, *encode(_FILE)]
    for name, text in reversed(others):
        if len(found) >= room:
            break
        head = encode(_SNIPPET) if tokens.file is None else [tokens.file, *encode(name + "\n")]
        found = [*head, *encode(text), *found]
    if tokens.repository is not None:
        found = [tokens.repository, *encode(_REPOSITORY), *found]
    return found[max(0, len(found) - room) :]
