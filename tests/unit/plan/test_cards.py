"""Cards by name and by their numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import ConfigError
from outrider.plan.cards import CARDS, GIB, MOST_CARDS, parse_cards


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [
        ("H100-80GB x 2", "H100-80GB", 2),
        ("h100", "H100-80GB", 1),
        ("NVIDIA H100 80GB", "H100-80GB", 1),
        ("RTX 4090", "RTX 4090", 1),
        ("rtx4090", "RTX 4090", 1),
        ("NVIDIA GeForce RTX 4090 x4", "RTX 4090", 4),
        ("4090", "RTX 4090", 1),
        ("A100-40GB", "A100-40GB", 1),
        ("2 x L4", "L4", 2),
        ("MI300X", "MI300X", 1),
        ("MI300X x 8", "MI300X", 8),
        ("RTX 6000 Ada × 2", "RTX 6000 Ada", 2),
    ],
)
def test_names(text: str, name: str, count: int) -> None:
    assert parse_cards(text) == (CARDS[name], count)


@pytest.mark.parametrize("name", CARDS)
def test_every_card_is_found_by_its_name(name: str) -> None:
    assert parse_cards(f"{name} x 2") == (CARDS[name], 2)


# What PyTorch reports as the memory of these cards, in GiB.
@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("H200", 139.8),
        ("H100-80GB", 79.1),
        ("A100-40GB", 39.4),
        ("RTX 4090", 23.6),
        ("L4", 22.0),
        ("T4", 14.7),
    ],
)
def test_memory_is_what_programs_find(name: str, gib: float) -> None:
    assert CARDS[name].memory / GIB == pytest.approx(gib, rel=0.012)


def test_numbers_instead_of_a_name() -> None:
    card, count = parse_cards("24GiB 1008GB/s x 2")
    assert (card.memory, card.bandwidth, card.half, count) == (24 * GIB, 1008e9, None, 2)
    card, _ = parse_cards("80 GB, 3.35 TB/s")
    assert (card.memory, card.bandwidth) == (80 * 10**9, 3.35e12)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("RTX 4091", ["RTX 4091", "unknown", "H100-80GB", "24GiB 1008GB/s", "did you mean"]),
        ("24GiB", ["unknown", "24GiB 1008GB/s"]),
        ("L4 x 0", ["1 to 1024"]),
        (f"L4 x {MOST_CARDS + 1}", ["1 to 1024"]),
        ("0GiB 1008GB/s", ["no card's"]),
        ("", ["unknown"]),
    ],
)
def test_what_is_unknown_is_told_in_one_line(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_cards(text)
    assert "\n" not in str(raised.value)
    assert all(word in str(raised.value) for word in words)


@settings(max_examples=40)
@given(st.text(max_size=24))
def test_any_text_is_a_card_or_an_error(text: str) -> None:
    try:
        card, count = parse_cards(text)
    except ConfigError:
        return
    assert card.memory > 0
    assert 1 <= count <= MOST_CARDS
