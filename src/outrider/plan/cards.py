"""Graphics cards, as far as a plan needs them: memory, bandwidth and the rate of dense matrix products.

Figures are those of the vendors' data sheets and architecture papers, without sparsity:
- NVIDIA B200 (DGX B200 data sheet, an eighth of it), H200, H100, L40S, L40, L4, A100, A40, A30, A10, T4,
  V100, RTX 6000 Ada and RTX A6000: their data sheets.
- RTX 50 series: NVIDIA RTX Blackwell GPU architecture; RTX 40: NVIDIA Ada GPU architecture; RTX 30: NVIDIA
  Ampere GA102 GPU architecture; rates with sums in fp32.
- AMD Instinct MI300X: its data sheet.
A data sheet's gigabytes are 2**30 bytes of chips.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from outrider.errors import ConfigError, nearest

GIB = 1 << 30
DRIVER = 0.012  # the part of the memory that drivers keep for themselves (0.9 to 1.5% on the cards above)
ECC = 1 / 16  # the part that error correction takes on professional cards with GDDR6
MOST_CARDS = 1024
_CUSTOM = "24GiB 1008GB/s"  # what a card that is not in the table looks like


@dataclass(frozen=True, slots=True)
class Card:
    """One card.

    memory:    bytes that programs find.
    bandwidth: bytes a second of its memory, by its data sheet.
    half:      dense bf16 products (fp16 on cards without bf16), FLOP a second; None where it is not known.
    eight:     the same of fp8; None where the card has none.
    """

    name: str
    memory: int
    bandwidth: float
    half: float | None = None
    eight: float | None = None


def _card(
    name: str, gib: float, gb_per_s: float, half: float, eight: float | None = None, *, ecc: bool = False
) -> Card:
    """Rates in TFLOPS."""
    memory = gib * GIB * (1 - DRIVER) * (1 - ECC if ecc else 1)
    return Card(name, int(memory), gb_per_s * 1e9, half * 1e12, None if eight is None else eight * 1e12)


CARDS = {
    card.name: card
    for card in (
        _card("B200", 180, 8000, 2250, 4500),
        _card("H200", 141, 4800, 989, 1979),
        _card("H100-80GB", 80, 3350, 989, 1979),
        _card("H100-PCIe", 80, 2000, 756, 1513),
        _card("H100-NVL", 94, 3900, 835, 1671),
        _card("A100-80GB", 80, 2039, 312),
        _card("A100-80GB-PCIe", 80, 1935, 312),
        _card("A100-40GB", 40, 1555, 312),
        _card("L40S", 48, 864, 362, 733, ecc=True),
        _card("L40", 48, 864, 181, 362, ecc=True),
        _card("L4", 24, 300, 121, 242, ecc=True),
        _card("A40", 48, 696, 149.7, ecc=True),
        _card("A30", 24, 933, 165),
        _card("A10", 24, 600, 125, ecc=True),
        _card("T4", 16, 320, 65, ecc=True),
        _card("V100-32GB", 32, 900, 125),
        _card("V100-16GB", 16, 900, 125),
        _card("RTX 6000 Ada", 48, 960, 364, 728),
        _card("RTX A6000", 48, 768, 154.8),
        _card("RTX 5090", 32, 1792, 209.5, 419),
        _card("RTX 4090", 24, 1008, 165.2, 330.3),
        _card("RTX 4080", 16, 716.8, 97.5, 194.9),
        _card("RTX 3090", 24, 936, 71),
        _card("RTX 3080", 10, 760, 59.5),
        _card("MI300X", 192, 5300, 1307, 2615),
    )
}
_OTHER_NAMES = {"h100": "H100-80GB", "a100": "A100-80GB", "v100": "V100-16GB", "6000 ada": "RTX 6000 Ada"}
_COUNT = re.compile(
    r"(?P<what>.*\S)\s+[x×*]\s*(?P<count>\d{1,6})|(?P<first>\d{1,6})\s*[x×*]\s+(?P<then>.*\S)", re.IGNORECASE
)
_OWN = re.compile(
    r"(?P<memory>\d+(?:\.\d+)?)\s*(?P<unit>GiB|GB|G)[\s,]+(?P<speed>\d+(?:\.\d+)?)\s*(?P<per>GB|TB)/s",
    re.IGNORECASE,
)


def parse_cards(text: str) -> tuple[Card, int]:
    """ "RTX 4090", "H100-80GB x 2" or "24GiB 1008GB/s x 4": a card and how many of it. Raises ConfigError."""
    counted = _COUNT.fullmatch(text.strip())
    what, count = text.strip(), 1
    if counted:
        what, count = counted["what"] or counted["then"], int(counted["count"] or counted["first"])
    if not 1 <= count <= MOST_CARDS:
        raise ConfigError(f"--gpu {text!r}: there can be 1 to {MOST_CARDS} cards")
    return _own(what, text) or _known(what, text), count


def _own(what: str, text: str) -> Card | None:
    """A card that is described by its numbers; None where it is not."""
    found = _OWN.fullmatch(what)
    if found is None:
        return None
    unit = GIB if found["unit"].lower() == "gib" else 10**9
    memory = int(float(found["memory"]) * unit)
    bandwidth = float(found["speed"]) * (1e12 if found["per"].lower() == "tb" else 1e9)
    if not 1e9 <= memory <= 1e14 or not 1e9 <= bandwidth <= 1e15:
        raise ConfigError(f"--gpu {text!r}: that is no card's memory or bandwidth")
    return Card(what, memory, bandwidth)


def _known(what: str, text: str) -> Card:
    names = {_plain(name): name for name in CARDS} | {_plain(k): v for k, v in _OTHER_NAMES.items()}
    plain = _plain(what)
    for prefix in ("nvidiageforce", "nvidia", "geforce", "amdinstinct", "amd", "instinct"):
        plain = plain.removeprefix(prefix)
    if (name := names.get(plain) or names.get("rtx" + plain)) is None:
        raise ConfigError(
            f"--gpu {text!r}: unknown; known are {', '.join(CARDS)}{nearest(what, CARDS)}; give another"
            f' one by its numbers: --gpu "{_CUSTOM}"'
        )
    return CARDS[name]


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
