"""Files and folders that are no models here: one line names each for what it is and says what to do."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from outrider.models.foreign import HEAD_BYTES, cut_piece, describe_file, describe_folder
from outrider.models.open import open_model
from outrider.models.sources.hub_files import choose
from tests.support.gguf_bytes import ARRAY, STRING, UINT32, gguf, pair, string
from tests.support.models import tiny_gguf, tiny_hf

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935\nsize 4661211808\n"
PAGE = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>"
IMATRIX = struct.pack("<ii", 290, 19) + b"blk.0.attn_q.weight" + bytes(40)
SAFETENSORS = struct.pack("<Q", 2) + b"{}" + bytes(8)


@pytest.mark.parametrize(
    ("raw", "name", "words"),
    [
        (POINTER, "m.gguf", "a Git LFS pointer: run `git lfs pull`"),
        (PAGE, "m.gguf", "a web page \\(HTML\\): download the file itself"),
        (b"\n  <!-- x -->\n<HTML lang=en>", "m.gguf", "a web page"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "m.gguf", "XML text"),
        (b"Entry not found", "m.gguf", r"text \('Entry not found', 15 bytes in all\)"),
        (b"Invalid username or password.\n", "m.gguf", "text .*server.*download"),
        (b'{"error": "Repository not found"}', "m.gguf", "JSON text: give the folder"),
        (b"lmgg" + bytes(40), "ggml-model.bin", "a GGML file, from before GGUF"),
        (b"fmgg" + bytes(40), "m.bin", "a GGMF file"),
        (b"tjgg\x03\0\0\0", "llama-7b.ggmlv3.q4_0.bin", "a GGJT file, from before GGUF .*convert"),
        (b"algg\x01\0\0\0", "ggml-adapter-model.bin", "a LoRA adapter from before GGUF"),
        (b"PK\x03\x04" + bytes(20), "pytorch_model.bin", "a zip archive; .* pickled PyTorch checkpoint"),
        (b"\x80\x02ctorch", "consolidated.00.pth", "a pickled PyTorch checkpoint, which can run code"),
        (b"\x80\x04\x95", "m.pt", "a pickled PyTorch checkpoint"),
        (b"\x1f\x8b\x08", "m.gguf.gz", "a gzip archive: unpack it first"),
        (b"\x28\xb5\x2f\xfd", "m.gguf.zst", "a zstd archive"),
        (b"7z\xbc\xaf\x27\x1c", "m.7z", "a 7-Zip archive"),
        (b"model.gguf" + bytes(247) + b"ustar\x0000", "m.tar", "a tar archive"),
        (b"\x89HDF\r\n\x1a\n", "m.h5", "an HDF5 file"),
        (b"\x08\x07\x12\x07pytorch", "model.onnx", "an ONNX model"),
        (SAFETENSORS, "m.gguf", "a safetensors file: give the folder"),
        (IMATRIX, "imatrix.dat", r"an importance matrix \(imatrix\)"),
        (bytes(4096), "m.gguf", "a file that begins with zeros, as an unfinished download"),
    ],
)
def test_files_by_their_first_bytes(tmp_path: Path, raw: bytes, name: str, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(raw)
    with pytest.raises(ModelFileError, match=f"not a GGUF file .*, but {words}") as caught:
        open_model(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@settings(max_examples=300)
@given(st.binary(max_size=HEAD_BYTES) | st.text(max_size=60).map(str.encode), st.integers(0, 1 << 50))
def test_whatever_the_bytes_the_words_are_one_line(head: bytes, size: int) -> None:
    words = describe_file(head, size, "x.gguf")
    assert words is None or (words.isprintable() and len(words) < 400)


def test_bytes_that_nothing_tells(tmp_path: Path) -> None:
    path = tmp_path / "noise.gguf"
    path.write_bytes(b"\xd3\xf1\x07\x99" * 30)
    with pytest.raises(ModelFileError, match=r"not a GGUF file \(starts with b'.*'\)\Z"):
        open_model(path)
    path.write_bytes(b"")
    with pytest.raises(ModelFileError, match="is empty; download it again"):
        open_model(path)


@pytest.mark.parametrize(
    "name", ["m.gguf-split-a", "m.gguf.part1of2", "m.gguf-part-b1", "m.gguf.001", "m.Q8_0.gguf.part2"]
)
def test_pieces_of_a_cut_file(tmp_path: Path, name: str) -> None:
    if name == "m.gguf-part-b1":
        assert cut_piece(name) == ""
        return
    whole = tiny_gguf(tmp_path / "m.gguf").read_bytes()
    path = tmp_path / name
    for piece in (whole[:3000], whole[:-100], b"\xd3\xf1\x07\x99" * 30):
        path.write_bytes(piece)
        with pytest.raises(
            ModelFileError, match="a piece of a cut file: join all pieces, in order, with `cat`"
        ):
            open_model(path)


def test_a_truncated_download(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf")
    raw = path.read_bytes()
    for size in (20, 3000, len(raw) - 1):
        path.write_bytes(raw[:size])
        with pytest.raises(ModelFileError, match=r"truncated: .*; download it again"):
            open_model(path)


VOCABULARY = pair("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", STRING, 1) + string("a"))


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (
            {"general.architecture": "clip"},
            r"holds a vision or audio projector \(mmproj\); give",
        ),
        ({"general.architecture": "clip", "general.type": "mmproj"}, "projector"),
        ({"general.type": "imatrix"}, r"holds an importance matrix \(imatrix\)"),
        ({"imatrix.chunk_count": 1}, "importance matrix"),
        (
            {"general.architecture": "llama", "general.type": "adapter"},
            "a LoRA adapter.*llama-export",
        ),
        ({"general.architecture": "llama", "adapter.type": "lora"}, "LoRA adapter"),
        ({"general.architecture": "controlvector"}, "holds a control vector"),
        ({"general.architecture": "llama", "vocabulary": True}, "holds only a vocabulary, without weights"),
        ({"general.architecture": "llama", "general.type": "theory"}, "holds a 'theory', not a whole model"),
    ],
)
def test_gguf_files_that_are_no_models(tmp_path: Path, pairs: dict[str, Any], words: str) -> None:
    encoded = [
        VOCABULARY
        if key == "vocabulary"
        else pair(key, STRING, string(value))
        if isinstance(value, str)
        else pair(key, UINT32, struct.pack("<I", value))
        for key, value in pairs.items()
    ]
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(encoded))
    with pytest.raises(UnsupportedModelError, match=words) as caught:
        open_model(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"]
)
@pytest.mark.parametrize(("raw", "words"), [(POINTER, "Git LFS pointer: run `git lfs"), (PAGE, "web page")])
def test_pointers_and_pages_in_a_folder(tmp_path: Path, name: str, raw: bytes, words: str) -> None:
    folder = tiny_hf(tmp_path / "hf")
    (folder / name).write_bytes(raw)
    with pytest.raises(ModelFileError, match=rf"{name}: .*{words}") as caught:
        open_model(folder)
    assert "\n" not in str(caught.value)


def test_an_empty_json_file(tmp_path: Path) -> None:
    folder = tiny_hf(tmp_path / "hf")
    (folder / "config.json").write_text("")
    with pytest.raises(ModelFileError, match="not valid JSON: the file is empty"):
        open_model(folder)


LORA = ["adapter_config.json", "adapter_model.safetensors", "README.md"]
MISTRAL = ["params.json", "consolidated.safetensors", "tekken.json"]
META = ["params.json", "consolidated.00.pth", "tokenizer.model", "checklist.chk"]
FOLDERS = [
    (LORA, r"a LoRA adapter \(adapter_config.json\), not a whole model: merge it into its base model"),
    (["adapter_config.json", "adapter_model.bin"], "a LoRA adapter"),
    (MISTRAL, r"a model in its maker's own layout \(consolidated.safetensors\); only Hugging Face's"),
    (META, r"a model in its maker's own layout \(consolidated.00.pth\)"),
    (["config.json", "consolidated.safetensors"], "a model in its maker's own layout"),
    (["config.json", "model.onnx"], r"an ONNX model \(model.onnx\)"),
    (["config.json", "onnx/model_q4.onnx"], r"an ONNX model \(onnx/model_q4.onnx\)"),
    (["openvino_model.xml", "openvino_model.bin.txt"], "an OpenVINO model"),
    (["config.json", "flax_model.msgpack"], "Flax weights"),
    (["config.json", "tf_model.h5"], "Keras weights"),
    (["model_index.json", "unet/model.safetensors"], "a diffusion pipeline"),
]


@pytest.mark.parametrize(("names", "words"), FOLDERS)
def test_folders_by_the_names_in_them(tmp_path: Path, names: list[str], words: str) -> None:
    complete = json.loads((tiny_hf(tmp_path / "hf") / "config.json").read_text())
    folder = tmp_path / "other"
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(complete))
    with pytest.raises(UnsupportedModelError, match=f"{folder}: holds {words}") as caught:
        open_model(folder)
    assert "\n" not in str(caught.value)
    with pytest.raises(UnsupportedModelError, match=f"hf:o/r: holds {words}"):
        choose(names, None, "hf:o/r")


def test_a_file_of_an_adapter(tmp_path: Path) -> None:
    for name in LORA:
        (tmp_path / name).write_text("{}")
    with pytest.raises(ModelFileError, match=r"give the folder that holds it.* it holds a LoRA adapter"):
        open_model(tmp_path / "adapter_model.safetensors")


def test_weights_without_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(SAFETENSORS)
    with pytest.raises(ModelNotFoundError, match=r"neither config\.json nor a GGUF file, only 'model\.safe"):
        open_model(tmp_path)


def test_a_model_with_an_adapter_beside_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tiny_hf(tmp_path / "hf")
    (folder / "adapter_config.json").write_text("{}")
    assert open_model(folder).architecture.n_layers == 2
    assert "its LoRA adapter (adapter_config.json) is not used" in caplog.text


@settings(max_examples=200)
@given(
    st.lists(st.text(max_size=12) | st.sampled_from([n for names, _ in FOLDERS for n in names]), max_size=6)
)
def test_whatever_the_names_the_words_are_one_line(names: list[str]) -> None:
    words = describe_folder(names)
    assert words is None or (words.isprintable() and len(words) < 400)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantized with BITSANDBYTES"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "has 3 bits, which is not supported"),
        ({"quantization_config": {"quant_method": "exl2", "bits": 4.0}}, "quantized with EXL2"),
        ({"quantization_config": {"quant_method": "modelopt"}}, "quantized with MODELOPT"),
        ({"quantization_config": {"quant_method": "a\n\x1b[2J"}}, r"with A\\n\\x1b\[2J"),
        ({"quantization": {"group_size": 64, "bits": 4}}, r"quantized by MLX \(quantization\)"),
        ({"quantization_config": {"group_size": 64, "bits": 4}}, "quantized by MLX"),
        ({"quantization_config": 7}, r"quantized \(quantization_config\)"),
    ],
)
def test_quantized_folders(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModelError, match=words + r".*use the model's GGUF file") as caught:
        open_model(tiny_hf(tmp_path / "hf", config=settings))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "dtype", "words"),
    [
        ("model.layers.0.mlp.up_proj.weight", "F8_E4M3", "as FP8 has it"),
        ("model.layers.0.mlp.up_proj.qweight", "I32", "as GPTQ or AWQ has it"),
        ("model.layers.0.mlp.up_proj.q_weight", "I32", "as EXL2 has it"),
        ("model.layers.0.mlp.up_proj.weight", "U32", "as MLX has it"),
        ("model.layers.0.mlp.up_proj.weight", "U8", "as bitsandbytes has it"),
        ("model.layers.0.mlp.experts.gate_up_proj_blocks", "U8", "as MXFP4 has it"),
        ("x", "I64", "has dtype 'I64'; supported"),
    ],
)
def test_quantized_tensors(tmp_path: Path, name: str, dtype: str, words: str) -> None:
    folder = tiny_hf(tmp_path / "hf")
    header = json.dumps({name: {"dtype": dtype, "shape": [8], "data_offsets": [0, 8]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(UnsupportedModelError, match=f"{words}.*use the model's GGUF file"):
        open_model(folder)


def test_an_index_that_names_a_missing_file(tmp_path: Path) -> None:
    folder = tiny_hf(tmp_path / "hf", shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    words = (
        r"00002-of-00003\.safetensors: no such file, but model\.safetensors\.index\.json names it as one of 3"
    )
    with pytest.raises(ModelNotFoundError, match=words):
        open_model(folder)


def test_a_gguf_file_in_the_place_of_safetensors(tmp_path: Path) -> None:
    folder = tiny_hf(tmp_path / "hf")
    tiny_gguf(folder / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"not a safetensors file .*, but a GGUF file: give it by its"):
        open_model(folder)
