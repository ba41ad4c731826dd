"""llama.cpp's own API: /completion, /infill, /apply-template, /props, /slots, and the count of a
conversation's tokens. (/tokenize and /detokenize take the fields of llama.cpp and of vLLM.)"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from pydantic import BaseModel, RootModel
from starlette.responses import Response

from outrider.decoding.sampling.params import SamplingParams
from outrider.server.http.chat import prompt_text
from outrider.server.http.dialects import inner
from outrider.server.http.dialects.base import Dialect
from outrider.server.http.dialects.llama_cpp.answer import LlamaAnswer, error_document, generation_settings
from outrider.server.http.dialects.llama_cpp.fields import LlamaCompletionRequest, LlamaInfillRequest
from outrider.server.http.dialects.llama_cpp.translate import (
    encode,
    encode_infill,
    is_list,
    text_request,
)
from outrider.server.http.disconnect import while_connected
from outrider.server.http.errors import ApiError, json_response
from outrider.server.http.generation import respond
from outrider.server.http.openapi import answers
from outrider.server.http.protocol import ChatRequest
from outrider.server.http.service import Service
from outrider.version import __version__


class LlamaErrorDetail(BaseModel):
    code: int
    message: str
    type: str
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None


class LlamaError(BaseModel):
    error: LlamaErrorDetail


class LlamaCompletion(BaseModel):
    index: int
    content: str
    tokens: list[int]
    stop: bool
    tokens_predicted: int
    tokens_evaluated: int


class LlamaCompletions(RootModel[LlamaCompletion | list[LlamaCompletion]]):
    """One document, or one for each prompt of a list."""


class AppliedTemplate(BaseModel):
    prompt: str


class Props(BaseModel):
    default_generation_settings: dict[str, Any]
    total_slots: int
    model_path: str
    chat_template: str


class Slot(BaseModel):
    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool


class Slots(RootModel[list[Slot]]):
    """The places of the engine."""


def _add(app: FastAPI, service: Service) -> None:
    @app.post(
        "/completion",
        tags=["llama.cpp"],
        summary="Go on with a text",
        responses=answers(LlamaCompletions, "text/event-stream"),
    )
    async def completion(request: Request, body: LlamaCompletionRequest) -> Response:
        made = text_request(service, body)
        prepared = await inner.prepare(service, request, made, "completion-", lambda: encode(service, body))
        answer = LlamaAnswer(service, body, prepared, is_list=is_list(body))
        return await respond(service, request, prepared, answer)

    @app.post(
        "/infill",
        tags=["llama.cpp"],
        summary="Fill in between two texts",
        responses=answers(LlamaCompletions, "text/event-stream"),
    )
    async def infill(request: Request, body: LlamaInfillRequest) -> Response:
        tokens = service.fim_tokens("/infill")
        made = text_request(service, body, tokens.ends)
        prepared = await inner.prepare(
            service, request, made, "infill-", lambda: encode_infill(service, body, tokens), ends=tokens.ends
        )
        answer = LlamaAnswer(service, body, prepared, is_list=False)
        return await respond(service, request, prepared, answer)

    @app.post(
        "/apply-template",
        tags=["llama.cpp"],
        summary="The prompt that a conversation becomes",
        responses=answers(AppliedTemplate),
    )
    async def apply_template(body: ChatRequest) -> Response:
        service.model.check_name(body.model)
        text = await service.workers.run_in_worker(lambda: prompt_text(service, body))
        return json_response({"prompt": text})

    @app.post("/chat/completions/input_tokens", include_in_schema=False)
    @app.post(
        "/v1/chat/completions/input_tokens",
        tags=["llama.cpp"],
        summary="How many tokens a conversation becomes",
        responses=answers(inner.InputTokens),
    )
    async def input_tokens(request: Request, body: ChatRequest) -> Response:
        service.model.check_name(body.model)
        return await while_connected(request, inner.input_tokens(service, body))

    @app.get("/props", tags=["llama.cpp"], summary="The model and its defaults", responses=answers(Props))
    async def props() -> Response:
        return json_response(_props(service))

    @app.get("/slots", tags=["llama.cpp"], summary="The places of the engine", responses=answers(Slots))
    async def slots(fail_on_no_slot: int = 0) -> Response:
        stats = service.engine.stats
        if fail_on_no_slot and stats.running >= stats.max_running:
            raise ApiError(503, "no slot is free", code="no_slot")
        return json_response([_slot(service, n, n < stats.running) for n in range(stats.max_running)])


def _props(service: Service) -> dict[str, Any]:
    tokenizer = service.tokenizer

    values: dict[str, Any] = {"max_tokens": None, **service.sampling.defaults.values}
    defaults = SamplingParams(**values)

    def text(token: int | None) -> str:
        return "" if token is None else tokenizer.pieces.texts[token]

    return {
        "default_generation_settings": {
            "n_ctx": service.engine.context,
            "params": generation_settings(defaults, defaults.seed),
        },
        "total_slots": service.engine.stats.max_running,
        "model_alias": service.model.names[0],
        "model_path": service.pipeline.source.display_name,
        "modalities": {"vision": False, "audio": False},
        "chat_template": service.templates.source or "",
        "bos_token": text(tokenizer.bos_id),
        "eos_token": text(tokenizer.eos_id),
        "build_info": f"outrider {__version__}",
        "is_sleeping": False,
    }


def _slot(service: Service, number: int, busy: bool) -> dict[str, Any]:
    """A place. Requests have no place of their own, so that only the number of busy ones is known."""
    drafts = service.pipeline.drafting.drafter is not None
    return {"id": number, "n_ctx": service.engine.context, "speculative": drafts, "is_processing": busy}


DIALECT = Dialect(
    paths=("/completion", "/infill", "/apply-template", "/props", "/slots"),
    error_document=error_document,
    error_model=LlamaError,
    add=_add,
)
