"""What a dialect is, and the base of its pydantic models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, model_validator

from outrider.errors import nearest
from outrider.server.http.errors import ApiError
from outrider.server.http.request_fields import Accepted, same
from outrider.server.http.request_translation import field_error
from outrider.server.http.service import Service

ANYTHING = object()  # in a list of neutral values: every value is
# Values that change nothing; why others are refused.
Neutral: TypeAlias = tuple[tuple[object, ...] | Accepted, str]
ANY: Neutral = ((ANYTHING,), "")


@dataclass(frozen=True, slots=True)
class Dialect:
    """One dialect.

    paths:          its own paths; errors at them and below them have its form.
    error_document: the JSON document of an error.
    error_model:    the schema of these documents.
    add:            adds its routes.
    """

    paths: tuple[str, ...]
    error_document: Callable[[ApiError], dict[str, Any]]
    error_model: type[BaseModel]
    add: Callable[[FastAPI, Service], None]

    def owns(self, path: str) -> bool:
        return any(path == own or path.startswith(own + "/") for own in self.paths)


class Fields(BaseModel):
    """A model without type conversion. An unknown field is refused with the nearest known name.

    neutral:  fields without effect; null is neutral for all of them.
    is_answer: clients send such an object back as they got it: with members that newer clients add, as null.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    neutral: ClassVar[Mapping[str, Neutral]] = {}
    is_answer: ClassVar[bool] = False

    @model_validator(mode="before")
    @classmethod
    def _only_known(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        known = [info.alias or name for name, info in cls.model_fields.items()]
        kept = {}
        for name, value in data.items():
            if name in known:
                whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**63
                kept[name] = int(value) if whole else value  # 16.0 is an integer in JSON
            elif name not in cls.neutral and value is None and cls.is_answer:
                continue
            elif name not in cls.neutral:
                hint = nearest(str(name), [*known, *cls.neutral])
                raise field_error(str(name), f"unknown field {str(name)[:80]!r}{hint}")
            elif value is not None:
                values, reason = cls.neutral[name]
                if not _is_neutral(value, values):
                    raise field_error(name, f"{name} is refused: {reason}")
        return kept


def _is_neutral(value: object, values: tuple[object, ...] | Accepted) -> bool:
    if isinstance(values, Accepted):
        return values.test(value)
    return ANYTHING in values or any(same(value, neutral) for neutral in values)
