"""Requests made from the server's own OpenAPI document: none may be answered by a mistake of ours, and none
that breaks the document may be taken for good."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.server.http_support import Running, running, toy_pipeline
from tests.support.lazy import Lazy

if TYPE_CHECKING:
    import schemathesis
    from schemathesis.specs.openapi import checks
else:
    schemathesis, checks = Lazy("schemathesis"), Lazy("schemathesis.specs.openapi.checks")

OPERATIONS = [
    *("POST /v1/chat/completions", "POST /v1/completions", "POST /tokenize", "POST /detokenize"),
    *("GET /v1/models", "GET /v1/models/{name}", "GET /health", "GET /ping", "POST /ping", "GET /version"),
    *("GET /load", "GET /metrics", "GET /v1/outrider/status", "GET /tokenizer_info"),
    *("POST /v1/messages", "POST /v1/messages/count_tokens", "POST /v1/responses"),
    *("POST /v1/responses/input_tokens", "GET /v1/responses/{response_id}"),
    *("DELETE /v1/responses/{response_id}", "GET /v1/responses/{response_id}/input_items"),
    "POST /v1/responses/{response_id}/cancel",
    *("POST /api/chat", "POST /api/generate", "POST /api/show", "GET /api/tags", "GET /api/ps"),
    *("GET /api/version", "POST /completion", "POST /infill", "POST /apply-template"),
    "POST /v1/chat/completions/input_tokens",
    *("GET /props", "GET /slots"),
]


@pytest.fixture(scope="module")
def small(target_file: Path) -> Iterator[Running]:
    with running(toy_pipeline(target_file), max_samples=3) as made:
        yield made


@pytest.fixture(scope="module")
def operations(small: Running) -> dict[str, Any]:
    schema = schemathesis.openapi.from_url(small.url + "/openapi.json")
    results: list[Any] = list(schema.get_all_operations())
    found = [result.ok() for result in results]
    return {f"{operation.method.upper()} {operation.path}": operation for operation in found}


def test_every_path_is_described(operations: dict[str, Any]) -> None:
    assert sorted(operations) == sorted(OPERATIONS)


@pytest.mark.grid(4)
@pytest.mark.parametrize("kind", ["good", "bad"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_generated_requests(operations: dict[str, Any], name: str, kind: str, small: Running) -> None:
    operation = operations[name]
    modes = schemathesis.GenerationMode
    mode = modes.POSITIVE if kind == "good" else modes.NEGATIVE
    has_input = operation.body or operation.path_parameters
    if kind == "bad" and not operation.body:
        pytest.skip("there is nothing to get wrong")

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=8 if has_input else 1,
        derandomize=True,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any) -> None:
        answer = case.call(timeout=20)
        case.validate_response(
            answer,
            checks=[
                schemathesis.checks.not_a_server_error,
                checks.content_type_conformance,
                checks.negative_data_rejection,
                checks.response_schema_conformance,
                checks.status_code_conformance,
            ],
        )

    ask()
    assert small.engine.healthy
