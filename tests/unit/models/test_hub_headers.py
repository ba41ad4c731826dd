"""Models on the hub that are described by their headers alone: what is moved, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants

from outrider import memory
from outrider.cli.main import main
from outrider.errors import DownloadError, ModelFileError, OutriderError, UnsupportedModelError
from outrider.models.formats import gguf_file
from outrider.models.open import open_model
from outrider.models.source import ModelSource
from outrider.models.sources import hub_headers
from outrider.models.sources.hub_headers import open_headers
from tests.support.hub_server import Hub, serve_hub
from tests.support.models import Dims, tiny_gguf, tiny_hf
from tests.support.split_gguf import split

LISTING = 4096  # bytes of a listing and of small JSON files, at most
DIMS = Dims(hidden=256, ffn=1024, layers=6)  # some megabytes of weights


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF model (also in two parts) and a folder."""
    place = tmp_path_factory.mktemp("hub")
    tiny_gguf(place / "m-Q8_0.gguf", dims=DIMS, types="Q8_0")
    (place / "parts").mkdir()
    split(place / "parts", count=2, dims=DIMS)
    tiny_hf(place / "folder", dims=DIMS)
    return place


@pytest.fixture
def hub(files: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve_hub() as server:
        for name in list(os.environ):
            if name.lower().endswith("_proxy") or name.startswith(("HF_", "HUGGING", "TRANSFORMERS_")):
                monkeypatch.delenv(name)
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", os.devnull)
        monkeypatch.delenv("OUTRIDER_OFFLINE", raising=False)
        server.repos["org/one"] = {"m-Q8_0.gguf": (files / "m-Q8_0.gguf").read_bytes()}
        server.repos["org/parts"] = {p.name: p.read_bytes() for p in (files / "parts").iterdir()}
        server.repos["org/folder"] = {p.name: p.read_bytes() for p in (files / "folder").iterdir()}
        yield server


def same(one: ModelSource, other: ModelSource) -> None:
    """All that a plan reads is equal."""
    assert {n: (t.type, t.shape, t.nbytes) for n, t in one.tensors.items()} == {
        n: (t.type, t.shape, t.nbytes) for n, t in other.tensors.items()
    }
    assert memory.estimate(one, 256) == replace(memory.estimate(other, 256), name=one.display_name)
    assert one.tokenizer.tokens == other.tokenizer.tokens
    assert one.tokenizer.tokenizer_json == other.tokenizer.tokenizer_json


def test_a_gguf_model_is_known_by_its_header(hub: Hub, files: Path) -> None:
    size = len(hub.repos["org/one"]["m-Q8_0.gguf"])
    source = open_headers("org/one", None, None)
    same(source, open_model(files / "m-Q8_0.gguf"))
    assert source.path == Path("hf:org/one/m-Q8_0.gguf")
    assert hub.sent < hub_headers.FIRST + LISTING < size / 4
    assert all(span.startswith("bytes=") for span in hub.gets("m-Q8_0.gguf"))


def test_a_long_header_is_read_in_steps(hub: Hub, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than the header and one step, and no byte twice."""
    monkeypatch.setattr(hub_headers, "FIRST", 3000)
    monkeypatch.setattr(hub_headers, "STEP", 1000)
    same(open_headers("org/one", "Q8_0", None), open_model(files / "m-Q8_0.gguf"))
    header = gguf_file.read_gguf(files / "m-Q8_0.gguf").data_start
    spans = [tuple(map(int, span[6:].split("-"))) for span in hub.gets("m-Q8_0.gguf")]
    assert len(spans) > 3
    assert all(one[1] + 1 == other[0] for one, other in pairwise(spans))
    assert spans[-1][1] < header + 1000


def test_all_parts_of_a_split_model(hub: Hub, files: Path) -> None:
    source = open_headers("org/parts", None, None)
    same(source, open_model(next(iter(sorted((files / "parts").iterdir())))))
    assert len(source.parts) == 1
    assert hub.sent < 2 * hub_headers.FIRST + LISTING


def test_a_folder_is_known_by_headers_and_json(hub: Hub, files: Path) -> None:
    hub.repos["org/folder"]["vocab.txt"] = b"not needed"
    source = open_headers("org/folder", None, None)
    same(source, open_model(files / "folder"))
    sizes = {name: len(data) for name, data in hub.repos["org/folder"].items()}
    weights = sizes.pop("model.safetensors")
    assert hub.sent < sum(sizes.values()) + hub_headers.FIRST + LISTING < weights
    assert not hub.gets("vocab.txt")


def test_rotary_factors_are_read(hub: Hub, tmp_path: Path) -> None:
    """They are weights in a GGUF file, and part of what the model computes."""
    factors = np.linspace(1, 8, 16).astype(np.float32)
    path = tiny_gguf(tmp_path / "f-Q8_0.gguf", dims=Dims(head_dim=32), tensors={"rope_freqs.weight": factors})
    hub.repos["org/one"] = {path.name: path.read_bytes()}
    found, local = (
        s.architecture.ropes[0].inv_freq for s in (open_headers("org/one", None, None), open_model(path))
    )
    assert (found == local).all()


def test_plan_reads_headers(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    line = "plan -m hf:org/one:Q8_0 -md hf:org/folder --gpu L4 --json"
    status = main(line.split())
    found = json.loads(capsys.readouterr().out)
    assert status == (0 if found["fits"] else 1)
    assert found["target"]["path"] == "hf:org/one:Q8_0/m-Q8_0.gguf"
    assert found["draft"]["name"] == "folder"
    assert not any(tmp_path.iterdir())
    monkeypatch.setenv("OUTRIDER_OFFLINE", "1")
    asked = len(hub.asked)
    assert main(line.split()) == 2
    assert "outrider pull hf:org/one:Q8_0" in capsys.readouterr().err
    assert len(hub.asked) == asked


# --- What is refused -------------------------------------------------------------------------------


def _no_ranges(hub: Hub) -> None:
    hub.ranges = False


def _unlisted_length(hub: Hub) -> None:
    hub.swap["m-Q8_0.gguf"] = hub.repos["org/one"]["m-Q8_0.gguf"] + b"more"


def _no_gguf(hub: Hub) -> None:
    hub.repos["org/one"] = {"m-Q8_0.gguf": b"<html>" * 100}


def _endless_counts(hub: Hub) -> None:
    data = bytearray(hub.repos["org/one"]["m-Q8_0.gguf"])
    data[8:16] = (1 << 60).to_bytes(8, "little")
    hub.repos["org/one"] = {"m-Q8_0.gguf": bytes(data)}


def _endless_string(hub: Hub) -> None:
    data = bytearray(hub.repos["org/one"]["m-Q8_0.gguf"])
    data[24:32] = (1 << 62).to_bytes(8, "little")
    hub.repos["org/one"] = {"m-Q8_0.gguf": bytes(data)}


def _cut(hub: Hub) -> None:
    hub.repos["org/one"] = {"m-Q8_0.gguf": hub.repos["org/one"]["m-Q8_0.gguf"][:5000]}


@pytest.mark.parametrize(
    ("harm", "kind", "words"),
    [
        (_no_ranges, DownloadError, "no range requests"),
        (_unlisted_length, DownloadError, "other bytes"),
        (_no_gguf, ModelFileError, "not a GGUF file"),
        (_endless_counts, ModelFileError, "tensors do not fit"),
        (_endless_string, ModelFileError, "header"),
        (_cut, ModelFileError, "truncated"),
    ],
)
def test_bad_gguf_files(hub: Hub, harm: Callable[[Hub], None], kind: type[OutriderError], words: str) -> None:
    harm(hub)
    with pytest.raises(kind, match=words) as raised:
        open_headers("org/one", None, None)
    assert "hf:org/one" in str(raised.value)
    assert "outrider-" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_server_without_ranges_sends_no_weights(hub: Hub) -> None:
    hub.ranges = False
    with pytest.raises(DownloadError, match="pull the model"):
        open_headers("org/folder", None, None)


@pytest.mark.parametrize("length", [1 << 30, 1 << 63])
def test_an_endless_header_of_safetensors(hub: Hub, length: int) -> None:
    data = length.to_bytes(8, "little") + hub.repos["org/folder"]["model.safetensors"][8:]
    hub.repos["org/folder"]["model.safetensors"] = data
    with pytest.raises(ModelFileError, match="at most"):
        open_headers("org/folder", None, None)
    assert len(hub.gets("model.safetensors")) == 1


def test_a_quantized_folder_needs_its_data(hub: Hub) -> None:
    config = json.loads(hub.repos["org/folder"]["config.json"])
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    hub.repos["org/folder"]["config.json"] = json.dumps(config).encode()
    with pytest.raises(UnsupportedModelError, match="pull it"):
        open_headers("org/folder", None, None)
    assert not hub.gets("model.safetensors")


def test_all_that_is_read_is_bounded(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_headers, "TOTAL_LIMIT", 1000)
    with pytest.raises(DownloadError, match="headers have more than"):
        open_headers("org/one", None, None)
    monkeypatch.setattr(hub_headers, "SMALL_LIMIT", 10)
    with pytest.raises(DownloadError, match="at most"):
        open_headers("org/folder", None, None)
