"""What happens to every request before and after its endpoint: an id, the key, a count, errors as JSON."""

from collections.abc import Mapping

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from livescale.services.gateway.access import ADMIN, Guard
from livescale.services.gateway.errors import ApiError, internal
from livescale.services.gateway.metrics import CLIENT_CLOSED_REQUEST, GatewayMetrics
from livescale.services.gateway.reading import error_answer
from livescale.shared.runtime.clock import Ids

LONGEST_ID = 128

log = structlog.get_logger()


class Door:
    """The outermost ASGI application. `x-request-id` is taken over or given, and echoed.

    Endpoints find the visit in the request's state.
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
        state["visit"] = visit
        app = self._app if refusal is None else error_answer(refusal)
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


class Refusals:
    """Starlette's exception handlers."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics

    async def api_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        if error.status == 429 or error.status >= 500:
            self._metrics.rejections.labels(error.detail.code).inc()
        return error_answer(error)

    async def http_error(self, request: Request, error: Exception) -> Response:
        """Starlette's own: no such route, no such method."""
        assert isinstance(error, HTTPException)
        what = f"{request.method} {request.url.path}"
        if error.status_code == 404:
            answer = error_answer(
                ApiError(404, f"There is no {what}; GET /docs shows what there is.", code="not_found")
            )
        else:
            answer = error_answer(ApiError(error.status_code, f"{what}: {error.detail}.", code="method_not_allowed"))
        answer.headers.update(error.headers or {})
        return answer

    async def disconnect(self, request: Request, error: Exception) -> Response:
        """Nobody is there to read it."""
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    async def bug(self, request: Request, error: Exception) -> Response:
        """Starlette raises the exception again after this answer, so that the server logs it."""
        return error_answer(internal("Internal error; the gateway's log says more."))
