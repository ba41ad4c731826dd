"""The table of known models and pairs: their official files, what may be done with them, and their shapes.

Names are short ("llama-3.2-1b") and can be pulled; the hub's official file comes first, then the package of
the catalog where there is one. A known SHA-256 holds for both. Of other files only the hub knows it: they are
checked against what the hub lists when they are pulled. Shapes are those of the models' own config.json, but
an output matrix that the official GGUF files hold beside a tied embedding counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from outrider.models.source import ModelSource
from outrider.models.sources.catalog import CATALOG, CatalogModel


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model, as `plan` and `bench --synthetic` need them.

    tied:    whether the output matrix is the embedding.
    window:  of the layers that have one, in tokens; 0: none has. Every layer but the last of each
             `window_period` has it.
    theta:   base of the rotary frequencies; local_theta, of layers with a window.
    """

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    tied: bool
    vocab: int
    positions: int
    theta: float
    window: int = 0
    window_period: int = 0
    local_theta: float = 10_000.0


@dataclass(frozen=True, slots=True)
class KnownModel:
    """One model.

    repo:    the official repository on the hub.
    file:    a GGUF file or a quantization tag in it; None: it holds a safetensors folder.
    license: its short name; terms: address of its text, where it sets conditions.
    gated:   whether the hub asks for an account that has accepted the terms.
    group:   models of one group share a vocabulary.
    words:   which the names of files and models have, in lower case, without signs between them.
    """

    name: str
    title: str
    repo: str
    file: str | None
    license: str
    group: str
    words: tuple[str, ...]
    shape: Shape
    gated: bool = False
    terms: str | None = None

    @property
    def reference(self) -> str:
        """Of the hub's file, as `-m` takes it."""
        return f"hf:{self.repo}" + (f":{self.file}" if self.file else "")

    @property
    def package(self) -> CatalogModel | None:
        """The same file on the package index."""
        return CATALOG.get(self.name)

    @property
    def sha256(self) -> str | None:
        """Of the file, where it is known; None: the hub's listing has it."""
        return None if self.package is None else self.package.sha256


APACHE, GEMMA, QWEN = "Apache-2.0", "Gemma", "Qwen Research"
LLAMA_TERMS = "https://www.llama.com/{}/license/"
GEMMA_TERMS = "https://ai.google.dev/gemma/terms"
QWEN_TERMS = "https://huggingface.co/Qwen/Qwen2.5-{}Instruct/blob/main/LICENSE"

# Layers, hidden size, heads, heads of keys and values, head size, feed-forward size, tied output matrix.
_Sizes = tuple[int, int, int, int, int, int, bool]
_LLAMA: dict[str, tuple[str, _Sizes]] = {
    "3.1-8b": ("8B", (32, 4096, 32, 8, 128, 14336, False)),
    "3.1-70b": ("70B", (80, 8192, 64, 8, 128, 28672, False)),
    "3.3-70b": ("70B", (80, 8192, 64, 8, 128, 28672, False)),
    "3.2-1b": ("1B", (16, 2048, 32, 8, 64, 8192, True)),
    "3.2-3b": ("3B", (28, 3072, 24, 8, 128, 8192, True)),
}
_QWEN2: dict[str, _Sizes] = {
    "0.5B": (24, 896, 14, 2, 64, 4864, False),
    "1.5B": (28, 1536, 12, 2, 128, 8960, False),
    "3B": (36, 2048, 16, 2, 128, 11008, False),
    "7B": (28, 3584, 28, 4, 128, 18944, False),
    "14B": (48, 5120, 40, 8, 128, 13824, False),
    "32B": (64, 5120, 40, 8, 128, 27648, False),
    "72B": (80, 8192, 64, 8, 128, 29568, False),
}
_QWEN3: dict[str, tuple[str, _Sizes]] = {
    "0.6B": ("Q8_0", (28, 1024, 16, 8, 128, 3072, True)),
    "1.7B": ("Q8_0", (28, 2048, 16, 8, 128, 6144, True)),
    "4B": ("Q4_K_M", (36, 2560, 32, 8, 128, 9728, True)),
    "8B": ("Q4_K_M", (36, 4096, 32, 8, 128, 12288, False)),
    "14B": ("Q4_K_M", (40, 5120, 40, 8, 128, 17408, False)),
    "32B": ("Q4_K_M", (64, 5120, 64, 8, 128, 25600, False)),
}
_GEMMA: dict[str, tuple[int, _Sizes]] = {  # the window first
    "270m": (512, (18, 640, 4, 1, 256, 2048, True)),
    "1b": (512, (26, 1152, 4, 1, 256, 6912, True)),
    "4b": (1024, (34, 2560, 8, 4, 256, 10240, True)),
    "12b": (1024, (48, 3840, 16, 8, 256, 15360, True)),
    "27b": (1024, (62, 5376, 32, 16, 128, 21504, True)),
}
_SMOLLM: dict[str, tuple[str, _Sizes, float]] = {
    "135M": ("q8_0", (30, 576, 9, 3, 64, 1536, True), 100_000.0),
    "360M": ("q8_0", (32, 960, 15, 5, 64, 2560, True), 100_000.0),
    "1.7B": ("q4_k_m", (24, 2048, 32, 32, 64, 8192, True), 130_000.0),
}


def _llama() -> Iterator[KnownModel]:
    for version, (size, sizes) in _LLAMA.items():
        release = version.partition("-")[0]
        yield KnownModel(
            f"llama-{version}", f"Llama {release} {size} Instruct",
            f"meta-llama/Llama-{release}-{size}-Instruct", None, f"Llama {release}", "llama-3",
            (f"llama{release}", size.lower()), Shape("llama", *sizes, 128_256, 131_072, 500_000.0),
            gated=True, terms=LLAMA_TERMS.format(f"llama{release.replace('.', '_')}"),
        )  # fmt: skip


def _qwen2() -> Iterator[KnownModel]:
    for size, sizes in _QWEN2.items():
        vocab = 152_064 if float(size[:-1]) >= 7 else 151_936
        shape = Shape("qwen2", *sizes, vocab, 32_768, 1e6)
        for middle, name, words in (
            ("", "qwen2.5", ("qwen2.5",)),
            ("Coder-", "qwen-coder", ("qwen2.5", "coder")),
        ):
            if middle and size == "72B":
                continue
            free = size not in ("3B", "72B")
            repo = f"Qwen/Qwen2.5-{middle}{size}-Instruct-GGUF"
            file = "qwen2.5-coder-{}-instruct-q4_k_m.gguf" if f"{name}-{size.lower()}" in CATALOG else ""
            yield KnownModel(
                f"{name}-{size.lower()}", f"Qwen2.5-{middle}{size}-Instruct, Q4_K_M", repo,
                file.format(size.lower()) or "Q4_K_M",
                APACHE if free else "Qwen" if size == "72B" else QWEN, "qwen2.5",
                (*words, size.lower()), shape, terms=None if free else QWEN_TERMS.format(f"{middle}{size}-"),
            )  # fmt: skip


def _qwen3() -> Iterator[KnownModel]:
    for size, (kind, sizes) in _QWEN3.items():
        yield KnownModel(
            f"qwen3-{size.lower()}", f"Qwen3-{size}, {kind}", f"Qwen/Qwen3-{size}-GGUF", kind, APACHE,
            "qwen3", ("qwen3", size.lower()), Shape("qwen3", *sizes, 151_936, 40_960, 1e6),
        )  # fmt: skip


def _gemma() -> Iterator[KnownModel]:
    for size, (window, sizes) in _GEMMA.items():
        folder = size == "270m"
        repo = f"google/gemma-3-{size}-it" + ("" if folder else "-qat-q4_0-gguf")
        small = size in ("270m", "1b")
        yield KnownModel(
            f"gemma-3-{size}" + ("-it" if folder else ""),
            f"Gemma 3 {size.upper()} (instruct{'' if folder else ', QAT Q4_0'})",
            repo, None if folder else "Q4_0", GEMMA, "gemma-3", ("gemma3", size),
            Shape("gemma3", *sizes, 262_144, 32_768 if small else 131_072, 1e6, window, 6),
            gated=True, terms=GEMMA_TERMS,
        )  # fmt: skip


def _smollm() -> Iterator[KnownModel]:
    for size, (kind, sizes, theta) in _SMOLLM.items():
        yield KnownModel(
            f"smollm2-{size.lower()}", f"SmolLM2-{size}-Instruct, {kind.upper()}",
            f"HuggingFaceTB/SmolLM2-{size}-Instruct-GGUF", f"smollm2-{size.lower()}-instruct-{kind}.gguf",
            APACHE, "smollm2", ("smollm2", size.lower()), Shape("llama", *sizes, 49_152, 8192, theta),
        )  # fmt: skip


KNOWN: Mapping[str, KnownModel] = MappingProxyType(
    {m.name: m for family in (_llama, _qwen2, _qwen3, _gemma, _smollm) for m in family()}
)
# Targets, and the draft models that guides pair them with, the smallest first.
_PAIRS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("llama-3.1-8b", "llama-3.1-70b", "llama-3.3-70b", "llama-3.2-3b"), ("llama-3.2-1b", "llama-3.2-3b")),
    (
        tuple(f"qwen2.5-{size.lower()}" for size in _QWEN2),
        ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b"),
    ),
    (
        tuple(name for name in KNOWN if name.startswith("qwen-coder-")),
        ("qwen-coder-0.5b", "qwen-coder-1.5b", "qwen-coder-3b"),
    ),
    (tuple(f"qwen3-{size.lower()}" for size in _QWEN3), ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b")),
    (
        ("gemma-3-1b", "gemma-3-4b", "gemma-3-12b", "gemma-3-27b"),
        ("gemma-3-270m-it", "gemma-3-1b", "gemma-3-4b"),
    ),
    (("smollm2-360m", "smollm2-1.7b"), ("smollm2-135m", "smollm2-360m")),
)
MOST_SHARE = 0.5  # of the target's parameters, that a draft model of the table has


def parameters(shape: Shape) -> int:
    """Weights of the matrices that a pass of one token reads."""
    heads = (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim
    return shape.layers * shape.hidden * (heads + 3 * shape.ffn) + shape.vocab * shape.hidden


def known_drafts(target: str) -> tuple[KnownModel, ...]:
    """The draft models that are paired with a known target, the smallest first; () for other names."""
    if target not in KNOWN:
        return ()
    most = MOST_SHARE * parameters(KNOWN[target].shape)
    return tuple(
        KNOWN[draft]
        for targets, drafts in _PAIRS
        if target in targets
        for draft in drafts
        if parameters(KNOWN[draft].shape) <= most
    )


def known_name(source: ModelSource) -> str | None:
    """The name of a model of the table, by its shape and the words in its name and path; None for others."""
    spec = source.architecture
    said = "".join(source.path.parts[-4:]) + " " + source.display_name
    text = re.sub(r"[^a-z0-9. ]", "", said.lower())
    text = f"{text} {text.replace(' ', '')}"
    names = source.display_name.lower().split()  # of a shape, its short name is among them
    found = [
        model
        for model in KNOWN.values()
        if (model.shape.family, model.shape.layers, model.shape.hidden, model.shape.heads)
        == (spec.name, spec.n_layers, spec.hidden_size, spec.n_heads)
        and (model.name in names or all(word in text for word in model.words))
    ]
    return max(found, key=lambda model: len(model.words)).name if found else None
