"""Predicted outputs over HTTP: `prediction` of chats and responses, `draft_text` of completions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.server.http_support import MODEL, Running, running, toy_pipeline

HI: Any = [{"role": "user", "content": "hello"}]
DIGITS: dict[str, Any] = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}


def digits(server: Running) -> list[int]:
    """Each is a token of its own in any text, so that a prediction as text has the answer's very tokens."""
    return [server.pipeline.tokenizer.encode(digit, add_special=False)[0] for digit in "0123456789"]


def chat(server: Running, **more: Any) -> dict[str, Any]:
    body = {"messages": HI, **DIGITS, "allowed_token_ids": digits(server), **more}
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def content(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def details(answer: dict[str, Any]) -> tuple[int, int]:
    """(accepted, rejected) tokens of the prediction."""
    found = answer["usage"]["completion_tokens_details"]
    assert set(found) == {"accepted_prediction_tokens", "rejected_prediction_tokens"}
    return found["accepted_prediction_tokens"], found["rejected_prediction_tokens"]


def test_the_answer_is_the_same_and_its_tokens_are_counted(server: Running) -> None:
    plain = chat(server, speculative=False)
    text = content(plain)
    assert len(text) == 40
    assert "completion_tokens_details" not in plain["usage"]
    right = chat(server, prediction={"type": "content", "content": text})
    assert content(right) == text
    assert details(right) == (32, 0), "eight steps of four drafted tokens and one more"
    parts = [{"type": "text", "text": text[:15]}, {"type": "text", "text": text[15:]}]
    assert details(chat(server, prediction={"type": "content", "content": parts})) == (32, 0)
    wrong = chat(server, prediction={"type": "content", "content": "not at all"})
    assert content(wrong) == text
    accepted, rejected = details(wrong)
    assert accepted == 0
    assert rejected > 0
    changed = f"{text[:20]}x{text[21:]}"
    edited = chat(server, prediction={"type": "content", "content": changed})
    assert content(edited) == text
    accepted, rejected = details(edited)
    assert 16 <= accepted < 40
    assert rejected > 0


def test_an_empty_prediction_and_one_beyond_the_context(server: Running) -> None:
    text = content(chat(server, speculative=False))
    assert details(chat(server, prediction={"type": "content", "content": ""})) == (0, 0)
    assert details(chat(server, prediction={"type": "content", "content": []})) == (0, 0)
    long = {"type": "content", "content": text + "5" * 300_000}
    found = chat(server, prediction=long)
    assert content(found) == text
    assert details(found)[0] == 32


def test_a_stream_counts_the_same(server: Running) -> None:
    text = content(chat(server, speculative=False))
    arguments: Any = {**DIGITS, "extra_body": {"allowed_token_ids": digits(server), "ignore_eos": True}}
    del arguments["ignore_eos"]
    prediction: Any = {"type": "content", "content": text}
    with server.client() as client:
        chunks = list(
            client.chat.completions.create(
                model=MODEL,
                messages=HI,
                prediction=prediction,
                stream=True,
                stream_options={"include_usage": True},
                **arguments,
            )
        )
        whole = client.chat.completions.create(model=MODEL, messages=HI, prediction=prediction, **arguments)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert chunks[-1].usage == whole.usage
    assert whole.usage is not None
    assert whole.usage.completion_tokens_details is not None
    assert whole.usage.completion_tokens_details.accepted_prediction_tokens == 32


def test_each_sample_has_the_prediction(server: Running) -> None:
    text = content(chat(server, speculative=False))
    both = chat(server, prediction={"type": "content", "content": text}, n=2)
    assert [choice["message"]["content"] for choice in both["choices"]] == [text, text]
    assert details(both) == (64, 0)


def test_tools_and_a_prediction(server: Running) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    fields: dict[str, Any] = {"messages": HI, "max_tokens": 20, "temperature": 0, "tools": [tool]}
    plain = server.post("/v1/chat/completions", {**fields, "speculative": False}).json()
    prediction = {"type": "content", "content": "hello"}
    found = server.post("/v1/chat/completions", {**fields, "prediction": prediction}).json()
    assert found["choices"] == plain["choices"]


def test_a_completion_takes_a_text_or_token_ids(server: Running) -> None:
    fields = {
        "prompt": "the fox",
        "temperature": 0,
        "max_tokens": 40,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    plain = server.post("/v1/completions", {**fields, "speculative": False}).json()["choices"][0]
    draft: Any
    for draft in (plain["token_ids"], plain["text"], "nothing like it", []):
        answer = server.post("/v1/completions", {**fields, "draft_text": draft})
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert found["choices"][0]["token_ids"] == plain["token_ids"]
        assert sum(details(found)) > 0 or not draft
    assert details(server.post("/v1/completions", {**fields, "draft_text": plain["token_ids"]}).json()) == (
        32,
        0,
    )
    chosen = {**fields, "draft_text": plain["token_ids"], "speculative": {"method": "ngram"}}
    assert details(server.post("/v1/completions", chosen).json()) == (32, 0), "whichever drafter is chosen"


def test_a_response_takes_a_prediction(server: Running) -> None:
    fields = {"input": "hello", "temperature": 0, "max_output_tokens": 20, "store": False}
    plain = server.post("/v1/responses", fields).json()
    assert set(plain["usage"]["output_tokens_details"]) == {"reasoning_tokens"}
    text = plain["output"][0]["content"][0]["text"]
    found = server.post(
        "/v1/responses", {**fields, "prediction": {"type": "content", "content": text}}
    ).json()
    assert found["output"][0]["content"] == plain["output"][0]["content"]
    assert found["usage"]["output_tokens_details"]["accepted_prediction_tokens"] >= 0
    wrong = server.post("/v1/responses", {**fields, "prediction": {"type": "contents"}})
    assert wrong.status_code == 400
    assert "prediction" in wrong.json()["error"]["message"]


def test_without_a_drafter_it_is_accepted_and_nothing_is_drafted(roomy_file: Path) -> None:
    with running(toy_pipeline(roomy_file)) as made:
        text = content(chat(made))
        found = chat(made, prediction={"type": "content", "content": text})
        assert content(found) == text
        assert details(found) == (0, 0)


@pytest.mark.parametrize("method", ["auto", "suffix"])
def test_the_other_methods_draft_from_it_too(roomy_file: Path, method: str) -> None:
    with running(toy_pipeline(roomy_file, method)) as made:
        text = content(chat(made, speculative=False))
        found = chat(made, prediction={"type": "content", "content": text}, outrider=True)
        assert content(found) == text
        if method == "suffix":
            assert details(found) == (37, 0), "three passes"
            sources = [token.get("source") for token in found["choices"][0]["outrider"]["tokens"]]
            assert sources.count("prediction") == 37


@pytest.mark.parametrize(
    ("prediction", "param", "message"),
    [
        ("text", "prediction", "valid dictionary"),
        ([], "prediction", "valid dictionary"),
        ({}, "prediction.type", "required"),
        ({"type": "content"}, "prediction.content", "required"),
        ({"type": "text", "content": "x"}, "prediction.type", "'content'"),
        ({"type": "content", "content": 5}, "prediction.content", "valid"),
        ({"type": "content", "content": None}, "prediction.content", "valid"),
        ({"type": "content", "content": ["x"]}, "prediction.content.0", "valid dictionary"),
        ({"type": "content", "content": [{"type": "text"}]}, "prediction.content.0.text", "required"),
        ({"type": "content", "content": [{"type": "a", "text": "x"}]}, "prediction.content.0.type", "'text'"),
        ({"type": "content", "content": "x", "contents": 1}, "prediction.contents", "did you mean 'content'"),
    ],
)  # fmt: skip
def test_what_is_no_prediction(server: Running, prediction: Any, param: str, message: str) -> None:
    answer = server.post("/v1/chat/completions", {"messages": HI, "max_tokens": 1, "prediction": prediction})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert message in error["message"]
    assert "\n" not in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/completions", {"prompt": "a", "prediction": {"type": "content", "content": "x"}}, "/v1/chat"),
        ("/v1/chat/completions", {"messages": HI, "draft_text": "x"}, "/v1/completions"),
        ("/v1/completions", {"prompt": "a", "draft_text": [5, 99999]}, "draft_text has the token id 99999"),
        ("/v1/completions", {"prompt": "a", "draft_text": [-1]}, "draft_text"),
        ("/v1/completions", {"prompt": "a", "draft_text": ["x"]}, "draft_text"),
        ("/v1/completions", {"prompt": "a", "draft_text": 5}, "draft_text"),
    ],
)  # fmt: skip
def test_what_is_no_draft_text(server: Running, path: str, body: dict[str, Any], message: str) -> None:
    answer = server.post(path, {"max_tokens": 1, **body})
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"]
