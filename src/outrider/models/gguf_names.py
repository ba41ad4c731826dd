"""What the names of GGUF files say: which are parts of a split model, and which are no models at all.

llama.cpp names the parts of a split model NAME-00001-of-00003.gguf and so on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

PART_LIMIT = 1024
SIDE_FILE = re.compile(r"mmproj|imatrix", re.IGNORECASE)  # projectors and importance matrices
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<end>\.gguf)", re.I | re.A | re.S)


def part_names(name: str) -> list[str]:
    """The names of all parts of the split model that the file `name` belongs to, the first one first; [] for
    the name of a file that is not split, or of more than PART_LIMIT parts."""
    match = _PART.fullmatch(name)
    count = int(match["count"]) if match else 0
    if match is None or not 1 < count <= PART_LIMIT or not 1 <= int(match["number"]) <= count:
        return []
    return [f"{match['stem']}-{n:05}-of-{match['count']}{match['end']}" for n in range(1, count + 1)]


def whole_models(names: Sequence[str]) -> list[str]:
    """The GGUF files among `names` that are models, one for each: of a split model its first part, whether it
    is there or not, and no projectors and importance matrices unless there is nothing else."""
    models = [name for name in names if not SIDE_FILE.search(name)] or list(names)
    return list(dict.fromkeys(parts[0] if (parts := part_names(name)) else name for name in models))
