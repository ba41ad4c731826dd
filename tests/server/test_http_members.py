"""Members that clients of vLLM read from answers, and paths that clients ask for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.http_support import MODEL, Running

BODIES: dict[str, dict[str, Any]] = {
    "/completions": {"prompt": "a b", "max_tokens": 2, "seed": 1},
    "/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "seed": 1},
}


def test_members_without_a_value_are_null(server: Running) -> None:
    with server.client() as client:
        text = client.completions.create(model=MODEL, prompt="a", max_tokens=2)
        chat = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "a"}], max_tokens=2
        )
        chunks: Any = list(client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "a"}], max_tokens=2, stream=True
        ))  # fmt: skip
    found: Any
    for found in (text, chat):
        assert found.service_tier is found.kv_transfer_params is None
        assert isinstance(found.system_fingerprint, str)
        assert found.choices[0].stop_reason is found.choices[0].token_ids is None
    choice: Any = text.choices[0]
    assert choice.prompt_logprobs is choice.prompt_token_ids is None
    found, message = chat, chat.choices[0].message
    assert found.prompt_logprobs is found.prompt_token_ids is None
    given = message.model_fields_set
    assert {"refusal", "annotations", "audio", "function_call", "reasoning"} <= given | set(
        message.model_extra or ()
    )
    assert all(chunk.choices[0].stop_reason is None for chunk in chunks)


def test_streams_tell_the_prompts_ids_once(server: Running) -> None:
    ids = server.post("/tokenize", {"prompt": "a b"}).json()["tokens"]
    with server.client() as client:
        more: Any = {"extra_body": {"return_token_ids": True}, "stream": True, "max_tokens": 3}
        text: Any = list(client.completions.create(model=MODEL, prompt="a b", n=2, **more))
        chat: Any = list(
            client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "a"}], **more)
        )
    for index in (0, 1):
        told = [c.choices[0].prompt_token_ids for c in text if c.choices[0].index == index]
        assert told[0] == ids
        assert set(told[1:]) <= {None}
    whole = server.post("/v1/chat/completions", {**BODIES["/chat/completions"], "return_token_ids": True})
    told = [getattr(c, "prompt_token_ids", None) for c in chat]
    assert told[0] == whole.json()["prompt_token_ids"]
    assert set(told[1:]) <= {None}


@pytest.mark.parametrize("path", BODIES)
def test_a_base_without_v1(server: Running, path: str) -> None:
    one, other = (server.post(base + path, BODIES[path]) for base in ("", "/v1"))
    assert one.status_code == 200
    assert one.json()["choices"] == other.json()["choices"]


def test_models_of_a_base_without_v1(server: Running) -> None:
    with server.http() as http:
        assert http.get("/models").json() == http.get("/v1/models").json()
        assert http.get(f"/models/{MODEL}").json()["id"] == MODEL


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/v1/v1/chat/completions", "'/v1/chat/completions'"),
        ("/api/v1/completions", "'/v1/completions'"),
        ("/openai/models", "'/v1/models'"),
        ("/v1/chat/completion", "'/v1/chat/completions'"),
        ("/v1/tokenize", "'/tokenize'"),
    ],
)
def test_a_path_with_nothing_says_where_to_go(server: Running, path: str, hint: str) -> None:
    answer = server.post(path, {})
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert hint in (error if path.startswith("/api/") else error["message"])  # Ollama's form under its paths


def test_a_path_like_no_other_has_no_hint(server: Running) -> None:
    message = server.post("/wp-login.php", {}).json()["error"]["message"]
    assert message == "there is nothing at /wp-login.php"
