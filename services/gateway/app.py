"""The ASGI application: its routes, and what happens to every request before and after its endpoint."""

from collections.abc import Mapping, Sequence
from functools import cache

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from livescale.services.gateway.access import ADMIN, Guard
from livescale.services.gateway.errors import ApiError, internal
from livescale.services.gateway.metrics import CLIENT_CLOSED_REQUEST, GatewayMetrics
from livescale.services.gateway.openapi import LIMITS, RETRY, Document, Operation, describe, docs_page
from livescale.services.gateway.responses import error_answer, json_answer
from livescale.shared.runtime.clock import Ids

LONGEST_ID = 128
# What scripts of other origins may read of an answer, beside its body.
EXPOSED_HEADERS = ("x-request-id", *RETRY, *LIMITS)

log = structlog.get_logger()


def make_app(
    operations: list[Operation], guard: Guard, ids: Ids, metrics: GatewayMetrics, allowed_origins: Sequence[str] = ()
) -> ASGIApp:
    """Build the application: routes from the operations, errors as JSON, and the middleware around them. Pages of
    `allowed_origins` may call it from browsers."""
    refusals = ErrorAnswers(metrics)
    app = Starlette(
        routes=[_route(operation) for operation in [*operations, *_documentation(operations, guard.with_keys)]],
        exception_handlers={
            ApiError: refusals.api_error,
            HTTPException: refusals.http_error,
            ClientDisconnect: refusals.disconnect,
            Exception: refusals.bug,
        },
    )
    app.router.redirect_slashes = False
    guarded = RequestMiddleware(app, guard, ids, metrics)
    if not allowed_origins:
        return guarded
    return CORSMiddleware(
        guarded,
        allow_origins=allowed_origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        expose_headers=EXPOSED_HEADERS,
    )


def _route(operation: Operation) -> Route:
    async def serve(request: Request) -> Response:
        request.state.endpoint = operation.path
        return await operation.serve(request)

    # A model's name may have slashes, so it may be several segments of a path.
    return Route(operation.path.replace("{model}", "{model:path}"), serve, methods=[operation.method])


def _documentation(operations: list[Operation], with_key: bool) -> list[Operation]:
    """The two operations that describe all operations, including themselves. The document is made when it is first
    asked for, as few gateways are."""

    @cache
    def document() -> Document:
        return describe([*operations, *own], with_key=with_key)

    async def openapi(request: Request) -> Response:
        return json_answer(document())

    async def docs(request: Request) -> Response:
        return HTMLResponse(docs_page(document()))

    own = [
        Operation("GET", "/openapi.json", openapi, "This document", {200: "application/json"}),
        Operation("GET", "/docs", docs, "This document as a page", {200: "text/html"}),
    ]
    return own


class RequestMiddleware:
    """The outermost ASGI application: it gives each request an id, checks its key and counts its answer. The client's
    `x-request-id` is used if it is usable, and sent back.

    Endpoints find the visit in the request's state, and `send_event`, by which the events of a stream that has begun
    go to the server at once.
    """

    def __init__(self, app: ASGIApp, guard: Guard, ids: Ids, metrics: GatewayMetrics) -> None:
        self._app = app
        self._guard = guard
        self._ids = ids
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"no {scope['type']} here")
        headers = dict(scope["headers"])
        state = scope["state"] = {"request_id": _given_id(headers) or self._ids.new("req"), "endpoint": "other"}
        visit, refusal = self._guard.admit(scope["path"], headers)
        state["visit"], state["send_event"] = visit, send
        # A path that ends with a slash is the same without it.
        scope["path"] = scope["path"].rstrip("/") or "/"
        app = self._app if refusal is None else error_answer(refusal, scope["path"])
        status, whole = 0, False

        async def watched_send(message: Message) -> None:
            nonlocal status, whole
            if message["type"] == "http.response.start":
                status = message["status"]
                added = [("x-request-id", state["request_id"]), *visit.headers()]
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in added)]
            else:
                whole = not message.get("more_body", False)
            await send(message)

        try:
            await app(scope, receive, watched_send)
        finally:
            del state["send_event"]  # the server's, which has this state: garbage that only a collection would find
            visit.end()
            self._metrics.count_answer(state["endpoint"], status, whole)
            if refusal is not None and refusal.status == 429:
                self._metrics.rejections.labels(refusal.detail.code).inc()
            if scope["path"].startswith(ADMIN):
                who = {"key": visit.who, "request": state["request_id"]}
                log.info("admin_request", method=scope["method"], endpoint=state["endpoint"], status=status, **who)


def _given_id(headers: Mapping[bytes, bytes]) -> str | None:
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    return given if 0 < len(given) <= LONGEST_ID and given.isascii() and given.isprintable() else None


class ErrorAnswers:
    """Starlette's exception handlers: each turns an exception into an answer in OpenAI's shape."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics

    async def api_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        if error.status == 429 or error.status >= 500:
            self._metrics.rejections.labels(error.detail.code).inc()
        return error_answer(error, request.url.path)

    async def http_error(self, request: Request, error: Exception) -> Response:
        """Answer Starlette's own errors: there is no such route, or not with this method."""
        assert isinstance(error, HTTPException)
        what = f"{request.method} {request.url.path}"
        if error.status_code == 404:
            refusal = ApiError(404, f"There is no {what}; GET /docs shows what there is.", code="not_found")
        else:
            refusal = ApiError(error.status_code, f"{what}: {error.detail}.", code="method_not_allowed")
        answer = error_answer(refusal, request.url.path)
        answer.headers.update(error.headers or {})
        return answer

    async def disconnect(self, request: Request, error: Exception) -> Response:
        """Return an answer for the count alone, as the client is gone."""
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    async def bug(self, request: Request, error: Exception) -> Response:
        """Answer an unexpected exception. Starlette raises it again afterwards, so that the server logs it."""
        return error_answer(internal("Internal error; the gateway's log says why."), request.url.path)
