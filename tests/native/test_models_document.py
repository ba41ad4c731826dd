"""docs/models.md says what the code says."""

from __future__ import annotations

from outrider.models.families import FAMILIES
from outrider.models.formats.hf_wrapper import WRAPPERS
from outrider.models.weight_types import BLOCKS
from tests.scripts.write_models import DOCUMENT, TEMPLATES, TITLES, written


def test_the_documents_tables_are_these() -> None:
    text = DOCUMENT.read_text("utf-8")
    assert written(text) == text, "run: python tests/scripts/write_models.py"
    assert FAMILIES.keys() == TITLES.keys() == TEMPLATES.keys()
    classes = [kind.name for family in FAMILIES.values() for kind in family.classes]
    assert all(f"`{name}`" in text for name in (*FAMILIES, *WRAPPERS, *classes))
    assert all(f"| {name} |" in text for name in BLOCKS)


def test_a_table_that_is_out_of_date_is_found() -> None:
    text = DOCUMENT.read_text("utf-8")
    stale = text.replace("| `qwen3` |", "| `qwen4` |")
    assert stale != text
    assert written(stale) == text
