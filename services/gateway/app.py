"""The ASGI application: its routes, their documentation as a page, and what happens to every request before and after
its endpoint."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from typing import Any

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
from livescale.services.gateway.openapi import LIMITS, RETRY, Document, Operation, describe
from livescale.services.gateway.responses import error_answer, json_answer
from livescale.shared.runtime.clock import Ids

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
details {{ border: 1px solid #8885; border-radius: 6px; margin: .5rem 0; padding: .4rem .8rem; }}
summary {{ cursor: pointer; }} code, pre {{ font: 13px ui-monospace, monospace; }} pre {{ overflow: auto; }}
table {{ border-collapse: collapse; }} td {{ padding: .1rem .8rem .1rem 0; vertical-align: top; }}
.method {{ display: inline-block; width: 3.2rem; font-weight: 600; }} .doc {{ color: #666; }}
</style>
<h1>{title}</h1>
<p>Version {version}. The same as a document: <a href="/openapi.json">/openapi.json</a>.</p>
{operations}
<h2>Objects</h2>
{schemas}
</html>
"""


def docs_page(document: Mapping[str, Any]) -> str:
    """Return an OpenAPI document as one page of HTML."""
    operations = [
        _operation(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = [_schema(name, schema) for name, schema in sorted(document["components"]["schemas"].items())]
    return PAGE.format(
        title=escape(document["info"]["title"]),
        version=escape(document["info"]["version"]),
        operations="\n".join(operations),
        schemas="\n".join(schemas),
    )


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    rows = [("takes", _content(operation["requestBody"]))] if "requestBody" in operation else []
    rows += [(f"{one['name']} ({one['in']})", escape(one.get("description", ""))) for one in operation["parameters"]]
    rows += [
        (status, f"{escape(answer['description'])}: {_content(answer)}")
        for status, answer in operation["responses"].items()
    ]
    head = f'<span class="method">{method.upper()}</span> <code>{escape(path)}</code> {escape(operation["summary"])}'
    return f"<details><summary>{head}</summary>{_table(rows)}</details>"


def _content(holder: Mapping[str, Any]) -> str:
    return ", ".join(f"{_kind(one['schema'])} as {escape(media)}" for media, one in holder["content"].items())


def _schema(name: str, schema: Mapping[str, Any]) -> str:
    required = schema.get("required", [])
    rows = [
        (
            f"<code>{escape(field)}</code>{'' if field in required else ' (optional)'}",
            f'{_kind(one)} <span class="doc">{escape(one.get("description", ""))}</span>',
        )
        for field, one in schema.get("properties", {}).items()
    ]
    about = f'<p class="doc">{escape(schema.get("description", ""))}</p>'
    return f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>{about}{_table(rows)}</details>'


def _kind(schema: Mapping[str, Any]) -> str:
    """A schema in few words; bounds and defaults are named as in JSON Schema."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f'<a href="#{escape(name)}">{escape(name)}</a>'
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if "enum" in schema:
        return " | ".join(f"<code>{escape(json.dumps(one))}</code>" for one in schema["enum"])
    bounds = {name: one for name, one in schema.items() if name not in ("type", "title", "description")}
    text = schema.get("type", "anything")
    return escape(f"{text} {json.dumps(bounds)}" if bounds else str(text))


def _table(rows: list[tuple[str, str]]) -> str:
    return f"<table>{''.join(f'<tr><td>{left}</td><td>{right}</td></tr>' for left, right in rows)}</table>"


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
