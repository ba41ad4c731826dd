"""Malicious model files: whatever the bytes are, only an OutriderError is raised, and memory stays
bounded."""

from __future__ import annotations

import json
import logging
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.errors import ModelFileError, OutriderError
from outrider.models.formats.dequantize import dequantize
from outrider.models.formats.gguf_file import read_gguf
from outrider.models.formats.safetensors import read_safetensors
from outrider.models.open import open_model
from outrider.models.source import ModelSource
from outrider.models.text.tokenizer import Tokenizer
from tests.support.gguf_bytes import entry, gguf, pair, string
from tests.support.models import VOCAB_SIZE, Dims, tiny_gguf, tiny_hf, write_safetensors
from tests.support.quantized import Kind, quantized_hf
from tests.support.split_gguf import split
from tests.support.wrapped import wrapped_hf

# The largest of these files has 100 kB. The whole run may raise the process's high-water mark by this much.
MEMORY_LIMIT = 128 << 20
TINY = Dims(layers=1, hidden=32, heads=2, kv_heads=1, ffn=32, context=64)

WORDS = st.one_of(
    st.sampled_from([0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 255, 256, 2**31 - 1, 2**31, 2**32 - 1, 2**32]),
    st.sampled_from([2**40, 2**53, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1]),
    st.integers(0, 2**64 - 1),
)
KINDS = ["flip", "byte", "word", "word", "cut", "insert", "delete", "copy"]
# (kind of mutation, place as a fraction of the file, value)
MUTATIONS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.floats(0, 1), WORDS),
    min_size=1,
    max_size=4,
)
fuzz = settings(max_examples=100 if os.environ.get("CI") else 300, suppress_health_check=list(HealthCheck))


def mutated(raw: bytes, mutations: list[tuple[str, float, int]], header: int) -> bytes:
    """`raw` with each mutation applied, nine in ten of them within the first `header` bytes."""
    out = bytearray(raw)
    for kind, place, value in mutations:
        span = min(len(out), header) if place < 0.9 else len(out)
        at = int((place / 0.9 if place < 0.9 else place) * max(span - 1, 0))
        if kind == "flip" and out:
            out[at] ^= 1 << value % 8
        elif kind == "byte" and out:
            out[at] = value % 256
        elif kind == "word":
            size = 4 if value < 2**32 and value % 2 else 8
            out[at : at + size] = value.to_bytes(8, "little")[:size]
        elif kind == "cut":
            del out[at:]
        elif kind == "insert":
            out[at:at] = value.to_bytes(8, "little")[: 1 + value % 8]
        elif kind == "delete":
            del out[at : at + 1 + value % 16]
        elif kind == "copy":
            out[at : at + 16] = out[at + 16 : at + 48]
    return bytes(out)


def survives(path: Path, read: Callable[[Path], object] = open_model) -> None:
    """Open `path`; a model that opens must be usable, an error must be one printable line of ours."""
    try:
        model = read(path)
    except OutriderError as caught:
        error = str(caught)
    else:
        error = ""
    if error:
        assert "\n" not in error
        assert len(error) < 1000
        error.encode()
        return
    if not isinstance(model, ModelSource):
        return
    arch = model.architecture
    assert model.tensors["token_embd.weight"].shape == (arch.vocab_size, arch.hidden_size)
    assert arch.n_heads % arch.n_kv_heads == 0
    assert (arch.ropes[0].inv_freq > 0).all()
    assert all(0 <= i < arch.vocab_size for i in model.tokenizer.eos_ids)
    for text in (*model.tokenizer.tokens, *model.tokenizer.merges, model.display_name):
        text.encode()
    for tensor in model.tensors.values():
        with nullcontext() if tensor.recode is None else suppress(ModelFileError):  # of 8-bit floats' NaN
            assert dequantize(tensor).shape == tensor.shape


def high_water() -> int:
    """The most memory that this process has had, in bytes; 0 where it is unknown."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@pytest.fixture(scope="module", autouse=True)
def bounded_memory() -> Iterator[None]:
    before = high_water()
    logging.disable(logging.WARNING)  # pytest would keep every record
    yield
    logging.disable(logging.NOTSET)
    assert high_water() - before < MEMORY_LIMIT


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def small(place: Path, types: str) -> bytes:
    """A GGUF file with a vocabulary of nine pieces, so that mutations meet every kind of field."""
    pieces = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "c", "ab", "bc", "abc"]
    keys = {
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [3, 3, 3, 1, 1, 1, 1, 1, 1],
        "tokenizer.ggml.merges": ["a b", "b c", "ab c"],
        "tokenizer.ggml.scores": [0.0] * 9,
        "general.alignment": 32,
        "split.count": 0,
        "llama.rope.scaling.type": "linear",
        "llama.rope.scaling.factor": 2.0,
        "llama.expert_count": 0,
    }
    return tiny_gguf(place / f"base-{types}.gguf", types=types, dims=TINY, keys=keys).read_bytes()


@pytest.mark.parametrize("types", ["F32", "Q4_1", "Q8_0"])
def test_mutated_gguf(place: Path, types: str) -> None:
    base = small(place, types)
    path = place / "fuzz.gguf"
    header = read_gguf(place / f"base-{types}.gguf").data_start

    @fuzz
    @given(MUTATIONS)
    def run(mutations: list[tuple[str, float, int]]) -> None:
        path.write_bytes(mutated(base, mutations, header))
        survives(path)

    run()


def test_every_truncation_of_a_gguf_header(place: Path) -> None:
    base = small(place, "Q8_0")
    path = place / "cut.gguf"
    for size in (*range(100), *range(100, 3000, 7), *range(3000, len(base), 997)):
        path.write_bytes(base[:size])
        with pytest.raises(OutriderError):
            open_model(path)


PAYLOADS = st.one_of(
    st.binary(max_size=24),
    WORDS.map(lambda n: struct.pack("<Q", n)),
    st.binary(max_size=8).map(string),
    st.tuples(st.integers(0, 13), WORDS, st.binary(max_size=32)).map(
        lambda t: struct.pack("<IQ", *t[:2]) + t[2]
    ),
)
PAIRS = st.lists(st.builds(pair, st.text(max_size=4), st.integers(0, 13), PAYLOADS), max_size=4)
ENTRIES = st.lists(
    st.builds(entry, st.text(max_size=3), st.lists(WORDS, max_size=5), st.integers(0, 40), WORDS), max_size=4
)


def test_made_up_gguf(place: Path) -> None:
    path = place / "made-up.gguf"

    @fuzz
    @given(PAIRS, ENTRIES, st.binary(max_size=200), st.sampled_from([2, 3]))
    def run(pairs: list[bytes], entries: list[bytes], data: bytes, version: int) -> None:
        path.write_bytes(gguf(pairs, entries, data, version=version))
        survives(path, lambda p: read_gguf(p).tensors())

    run()


def test_mutated_parts_of_a_split_gguf(place: Path) -> None:
    folder = place / "split"
    folder.mkdir()
    paths = split(folder, count=2)
    bases = [path.read_bytes() for path in paths]
    headers = [read_gguf(path).data_start for path in paths]

    @fuzz
    @given(st.integers(0, 1), MUTATIONS, st.integers(0, 1))
    def run(which: int, mutations: list[tuple[str, float, int]], opened: int) -> None:
        for number, base in enumerate(bases):
            raw = mutated(base, mutations, headers[number]) if number == which else base
            paths[number].write_bytes(raw)
        survives(paths[opened])

    run()


def test_parts_of_several_models(place: Path) -> None:
    """Any part of any of four models in any place, and any values of the keys that say which part it is."""
    folder = place / "mixed"
    folder.mkdir()
    made = {
        "same": split(folder, "same"),
        "other seed": split(folder, "seed", seed=5),
        "other sizes": split(folder, "sizes", dims=replace(TINY, layers=2)),
        "other family": split(folder, "family", arch="qwen3"),
        "fewer parts": split(folder, "few", count=2),
    }
    pool = {
        (name, part): path.read_bytes() for name, paths in made.items() for part, path in enumerate(paths)
    }
    paths = [folder / f"m-{part:05}-of-00003.gguf" for part in (1, 2, 3)]
    numbers = st.sampled_from([0, 1, 2, 3, 4, 1023, 2**15, 2**16 - 1])
    keys = st.sampled_from([b"split.no", b"split.count", b"split.tensors.count"])

    @fuzz
    @given(
        st.tuples(*[st.sampled_from(list(pool))] * 3),
        st.lists(st.tuples(st.integers(0, 2), keys, numbers), max_size=2),
        st.integers(0, 2),
    )
    def run(parts: tuple[tuple[str, int], ...], changes: list[tuple[int, bytes, int]], opened: int) -> None:
        raws = [bytearray(pool[part]) for part in parts]
        for which, key, number in changes:
            at = raws[which].find(key)
            if at >= 0:  # the value's type, then the value
                raws[which][at + len(key) + 4 : at + len(key) + 6] = number.to_bytes(2, "little")
        for path, raw in zip(paths, raws, strict=True):
            path.write_bytes(raw)
        if changes or [number for _, number in parts] != [0, 1, 2] or len({name for name, _ in parts}) > 1:
            survives(paths[opened])
        else:
            assert len(open_model(paths[opened]).parts) == 2

    run()


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json", "tokenizer.json"])
def test_mutated_files_of_a_folder(place: Path, name: str) -> None:
    folder = tiny_hf(place / name, dims=TINY, shards=2 if "index" in name else 1)
    path = folder / name
    base = path.read_bytes()
    header = len(base) if name.endswith("json") else 8 + int.from_bytes(base[:8], "little")

    @fuzz
    @given(MUTATIONS)
    def run(mutations: list[tuple[str, float, int]]) -> None:
        path.write_bytes(mutated(base, mutations, header))
        survives(folder)

    run()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=5)
    | st.sampled_from([0, -1, 1, 2, 64, 10**400, 1e308, "linear", "llama3", "default", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)


# A folder of each layout: what becomes of mutations of its tensors' names, shapes and bytes.
QUANTIZED = (
    Kind("awq", group=32),
    Kind("gptq", group=32, act_order="each"),
    Kind("pack-quantized", bits=8),
    Kind("float-quantized", bits=8, strategy="channel"),
    Kind("fp8", bits=8, block=(32, 32), scale_dtype="F32"),
)


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: str(kind.method))
def test_mutated_quantized_folders(place: Path, kind: Kind) -> None:
    folder, _ = quantized_hf(place / kind.method, kind, dims=TINY)
    weights = folder / "model.safetensors"
    raw = weights.read_bytes()
    header = 8 + int.from_bytes(raw[:8], "little")

    @settings(fuzz, max_examples=120)
    @given(MUTATIONS)
    def run(mutations: list[tuple[str, float, int]]) -> None:
        weights.write_bytes(mutated(raw, mutations, header))
        survives(folder)

    run()


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: str(kind.method))
def test_quantization_settings_with_any_value_anywhere(place: Path, kind: Kind) -> None:
    folder, _ = quantized_hf(place / f"{kind.method} settings", kind, dims=TINY)
    path = folder / "config.json"
    base = json.loads(path.read_text())
    settings_of = base["quantization_config"]
    places: list[tuple[str, ...]] = [(key,) for key in settings_of]
    group = settings_of.get("config_groups", {}).get("group_0", {})
    places += [("config_groups", "group_0", key) for key in group]
    places += [("config_groups", "group_0", "weights", key) for key in group.get("weights", {})]
    values = JSON | st.sampled_from([4, 8, 16, 32, 64, "int", "float", "tensor", "channel", "group", "block"])

    @settings(fuzz, max_examples=120)
    @given(st.lists(st.tuples(st.sampled_from(places), values), min_size=1, max_size=3))
    def run(changes: list[tuple[tuple[str, ...], Any]]) -> None:
        config = json.loads(json.dumps(base))
        for (*outer, key), value in changes:
            target = config["quantization_config"]
            for each in outer:
                target = target.get(each) if isinstance(target, dict) else None
            if isinstance(target, dict):
                target[key] = value
        path.write_text(json.dumps(config))
        survives(folder)

    run()


def test_configurations_with_any_value_anywhere(place: Path) -> None:
    folder = tiny_hf(place / "config", dims=TINY)
    files = ["config.json", "tokenizer_config.json", "generation_config.json"]
    bases: dict[str, dict[str, Any]] = {name: json.loads((folder / name).read_text()) for name in files}
    bases["config.json"]["rope_scaling"] = {"rope_type": "llama3", "factor": 2, "low_freq_factor": 1}
    bases["config.json"]["rope_scaling"] |= {"high_freq_factor": 4, "original_max_position_embeddings": 32}
    more = ["head_dim", "rope_parameters", "sliding_window", "layer_types", "quantization_config"]
    more += ["quantization"]
    places = [(name, key) for name, base in bases.items() for key in base]
    places += [("config.json", key) for key in (*more, "partial_rotary_factor", "mlp_bias")]
    places += [("rope_scaling", key) for key in bases["config.json"]["rope_scaling"]]

    @fuzz
    @given(st.lists(st.tuples(st.sampled_from(places), JSON), min_size=1, max_size=3))
    def run(changes: list[tuple[tuple[str, str], Any]]) -> None:
        texts = {name: json.loads(json.dumps(base)) for name, base in bases.items()}
        for (name, key), value in changes:
            target = texts["config.json"].get("rope_scaling") if name == "rope_scaling" else texts[name]
            if isinstance(target, dict):
                target[key] = value
        for name, value in texts.items():
            (folder / name).write_text(json.dumps(value))
        survives(folder)

    run()


@pytest.mark.parametrize("arch", ["gemma3", "mistral3"])
def test_configurations_of_text_parts_with_any_value_anywhere(place: Path, arch: str) -> None:
    folder = wrapped_hf(place / f"{arch} wrapped", arch, old=True, dims=replace(TINY, window=8))
    path = folder / "config.json"
    base = json.loads(path.read_text())
    places = [("", key) for key in (*base, "rope_scaling", "quantization_config")]
    places += [("text_config", key) for key in (*base["text_config"], "rope_parameters", "layer_types")]
    values = JSON | st.sampled_from(
        ["gemma3_text", "mistral", "mistral3", ["Gemma3ForConditionalGeneration"]]
    )

    @fuzz
    @given(st.lists(st.tuples(st.sampled_from(places), values), min_size=1, max_size=3))
    def run(changes: list[tuple[tuple[str, str], Any]]) -> None:
        config = json.loads(json.dumps(base))
        for (where, key), value in changes:
            target = config.get("text_config") if where else config
            if isinstance(target, dict):
                target[key] = value
        path.write_text(json.dumps(config))
        survives(folder)

    run()


NAMES = st.sampled_from(
    ["", "model.", "language_model.", "model.language_model.", "language_model.model.", "vision_tower."]
)


def test_names_of_text_parts(place: Path) -> None:
    folder = wrapped_hf(place / "names", "gemma3", old=False, dims=replace(TINY, window=8))
    path = folder / "model.safetensors"
    found = [(t.name, t.shape, t.data.tobytes()) for t in read_safetensors(path).values()]

    @settings(fuzz, max_examples=120)
    @given(st.lists(st.tuples(st.integers(0, len(found) - 1), NAMES, NAMES), max_size=4))
    def run(changes: list[tuple[int, str, str]]) -> None:
        names = [name for name, _, _ in found]
        for which, old, new in changes:
            names[which] = new + names[which].removeprefix(old)
        tensors = {name: entry[1:] for name, entry in zip(names, found, strict=True)}
        write_safetensors(path, "F32", [(name, *rest) for name, rest in tensors.items()])
        survives(folder)

    run()


TOKENS = st.lists(
    st.text(max_size=3) | st.sampled_from(["<|im_end|>", "<x>", "the", "", "\ud800"]), max_size=3
)
FLAGS = st.dictionaries(
    st.sampled_from(["special", "lstrip", "rstrip", "single_word", "normalized", "__type"]),
    st.booleans() | JSON,
    max_size=3,
)
ENTRIES_OF_TOKENS = st.tuples(TOKENS, FLAGS).map(lambda t: [{"content": c, **t[1]} for c in t[0]])
VALUES_OF_TOKENS = (
    JSON
    | TOKENS
    | ENTRIES_OF_TOKENS
    | ENTRIES_OF_TOKENS.map(lambda entries: {str(318 + n): entry for n, entry in enumerate(entries)})
    | TOKENS.map(lambda tokens: {token: 318 + n for n, token in enumerate(tokens)})
    | TOKENS.map(lambda tokens: tokens[0] if tokens else None)
)
PLACES_OF_TOKENS = [
    *(("tokenizer_config.json", key) for key in ("added_tokens_decoder", "eos_token", "pad_token")),
    *(("tokenizer_config.json", key) for key in ("extra_special_tokens", "image_token", "add_bos_token")),
    *(("special_tokens_map.json", key) for key in ("eos_token", "additional_special_tokens")),
    ("added_tokens.json", "<x>"),
    ("added_tokens.json", None),
]


def test_added_tokens_with_any_value_anywhere(place: Path) -> None:
    folder = tiny_hf(place / "added", dims=TINY)

    @fuzz
    @given(st.lists(st.tuples(st.sampled_from(PLACES_OF_TOKENS), VALUES_OF_TOKENS), min_size=1, max_size=4))
    def run(changes: list[tuple[tuple[str, str | None], Any]]) -> None:
        texts: dict[str, Any] = {name: {} for name, _ in PLACES_OF_TOKENS}
        for (name, key), value in changes:
            if key is None:
                texts[name] = value
            elif isinstance(texts[name], dict):
                texts[name][key] = value
        for name, value in texts.items():
            (folder / name).write_text(json.dumps(value))
        survives(folder, usable)

    def usable(path: Path) -> ModelSource:
        model = open_model(path)
        made = Tokenizer.from_data(model.tokenizer)
        ids = made.encode("the <x><|im_end|> fox")
        assert all(0 <= i < model.architecture.vocab_size for i in ids)
        assert all(text.encode() or not text for text in made.named_tokens.values())
        return model

    run()


def test_tokenizers_with_any_value_anywhere(place: Path) -> None:
    folder = tiny_hf(place / "tokenizer", dims=TINY)
    path = folder / "tokenizer.json"
    base = json.loads(path.read_text())
    base["model"]["vocab"] = {"a": 0, "b": VOCAB_SIZE - 1}
    base["model"]["merges"] = []

    @fuzz
    @given(JSON, st.sampled_from(["model", "vocab", "added_tokens", "added", "id", "content", "piece"]))
    def run(value: Any, where: str) -> None:
        parsed = json.loads(json.dumps(base))
        if where in ("model", "added_tokens"):
            parsed[where] = value
        elif where in ("vocab", "piece"):
            parsed["model"] = {"vocab": value if where == "vocab" else {"a": value}}
        elif where == "added":
            parsed["added_tokens"].append(value)
        else:
            parsed["added_tokens"][0][where] = value
        path.write_text(json.dumps(parsed))
        survives(folder)

    run()
