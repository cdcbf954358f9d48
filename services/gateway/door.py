"""What happens to every request before and after its endpoint: an id, the key, a count, errors as JSON."""

import hmac
from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.errors import ApiError, internal
from services.gateway.metrics import CLIENT_CLOSED_REQUEST, GatewayMetrics
from services.gateway.reading import error_answer
from shared.world import Ids

PROTECTED = ("/v1/", "/admin/")
LONGEST_ID = 128


class Door:
    """The outermost ASGI application. `x-request-id` is taken over or given, and echoed; no `api_key` asks for none."""

    def __init__(self, app: ASGIApp, api_key: str, ids: Ids, metrics: GatewayMetrics) -> None:
        self._app = app
        self._api_key = api_key.encode()
        self._ids = ids
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"no {scope['type']} here")
        headers = dict(scope["headers"])
        state = scope["state"] = {"request_id": _given_id(headers) or self._ids.new("req"), "endpoint": "other"}
        app = self._app if self._is_admitted(scope["path"], headers) else _refuse_key
        status, whole = 0, False

        async def watched_send(message: Message) -> None:
            nonlocal status, whole
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", state["request_id"].encode())]
            else:
                whole = not message.get("more_body", False)
            await send(message)

        try:
            await app(scope, receive, watched_send)
        finally:
            self._metrics.count_answer(state["endpoint"], status, whole)

    def _is_admitted(self, path: str, headers: Mapping[bytes, bytes]) -> bool:
        if not self._api_key or not path.startswith(PROTECTED):
            return True
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._api_key)


def _given_id(headers: Mapping[bytes, bytes]) -> str | None:
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    return given if 0 < len(given) <= LONGEST_ID and given.isascii() and given.isprintable() else None


async def _refuse_key(scope: Scope, receive: Receive, send: Send) -> None:
    message = "The API key is missing or wrong: send 'Authorization: Bearer KEY'."
    await error_answer(ApiError(401, message, code="invalid_api_key"))(scope, receive, send)


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
