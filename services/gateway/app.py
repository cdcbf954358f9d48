"""The ASGI application: routes from the operations, exceptions as JSON, the door around it all."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from livescale.services.gateway.access import Guard
from livescale.services.gateway.docs import page
from livescale.services.gateway.door import Door, Refusals
from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.metrics import GatewayMetrics
from livescale.services.gateway.openapi import Document, describe
from livescale.services.gateway.operations import Operation
from livescale.services.gateway.reading import json_answer
from livescale.shared.runtime.clock import Ids


def make_app(operations: list[Operation], guard: Guard, ids: Ids, metrics: GatewayMetrics) -> ASGIApp:
    refusals = Refusals(metrics)
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
    return Door(app, guard, ids, metrics)


def _route(operation: Operation) -> Route:
    async def serve(request: Request) -> Response:
        request.state.endpoint = operation.path
        return await operation.serve(request)

    # Names of models may have slashes.
    return Route(operation.path.replace("{model}", "{model:path}"), serve, methods=[operation.method])


def _documentation(operations: list[Operation], with_key: bool) -> list[Operation]:
    """The two operations that describe all operations, themselves included."""
    document: Document = {}

    async def openapi(request: Request) -> Response:
        return json_answer(document)

    async def docs(request: Request) -> Response:
        return HTMLResponse(page(document))

    own = [
        Operation("GET", "/openapi.json", openapi, "This document", {200: "application/json"}),
        Operation("GET", "/docs", docs, "This document as a page", {200: "text/html"}),
    ]
    document.update(describe([*operations, *own], with_key=with_key))
    return own
