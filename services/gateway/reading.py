"""What every endpoint does with requests and answers."""

import asyncio
import re

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from livescale.services.gateway.errors import ApiError

BODY_TIMEOUT_SECONDS = 30.0
TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises ApiError 413 beyond `limit` bytes, 408 where it does not come."""
    too_large = ApiError(413, f"The body is larger than {limit} bytes.", code="request_too_large")
    if int(request.headers.get("content-length", 0)) > limit:  # the parser took it for a number
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise too_large
    except TimeoutError:
        raise ApiError(408, f"The body did not come within {BODY_TIMEOUT_SECONDS:.0f} s.", code="timeout") from None
    return bytes(body)


def json_answer(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


def error_answer(error: ApiError) -> Response:
    headers = dict(error.headers)
    if error.status in (408, 413):
        headers["connection"] = "close"  # the rest of the body is not worth reading
    return Response(error.body, error.status, headers, media_type="application/json")


def public_id(request: Request) -> str:
    """The id that the client gave its request, else ours."""
    return str(request.state.request_id)


def trace_of(request: Request) -> str | None:
    """The caller's W3C traceparent, where it is one."""
    header: str = request.headers.get("traceparent", "")
    return header if TRACEPARENT.fullmatch(header) else None
