"""What one endpoint is: what serves it, what it takes and gives. Routes and documentation are made from that."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from livescale.services.gateway.errors import ErrorBody

Serve = Callable[[Request], Awaitable[Response]]

BODY_ERRORS = (400, 408, 413, 415)
BUS_ERRORS = (429, 503, 504)
MODEL_ERRORS = (404, 500, 503)
GENERATION_ERRORS = (*BODY_ERRORS, *MODEL_ERRORS, 429, 504)


@dataclass(frozen=True)
class Operation:
    """One endpoint. `answers` has, by status, the type of the JSON body or a media type; `stream` is the type of an
    event, `error` that of the body of an error. `protected` endpoints need an API key where there are keys."""

    method: str
    path: str
    serve: Serve
    summary: str
    answers: dict[int, Any]
    body: Any = None
    stream: Any = None
    errors: tuple[int, ...] = ()
    error: Any = ErrorBody
    query: tuple[tuple[str, str], ...] = ()
    protected: bool = False
