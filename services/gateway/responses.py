"""The responses that clients get: JSON, an error, or a stream of server-sent events.

An answer is cancelled when its client leaves.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from livescale.services.gateway.errors import ApiError, ErrorBody
from livescale.services.gateway.messages_shape import MessageErrorBody, message_error

T = TypeVar("T")
Write = Callable[[msgspec.Struct], Awaitable[None]]
Wait = Callable[[], Awaitable[None]]
Failure = Callable[[ApiError], msgspec.Struct]
Produce = Callable[[Write, Wait], Coroutine[Any, Any, None]]

MESSAGES = "/v1/messages"
# Proxies close connections on which nothing moves, so comments are sent; clients do not see them as events.
COMMENT_SECONDS = 3.0
COMMENT = b": waiting\n\n"
HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}

_encode = msgspec.json.Encoder().encode


def json_answer(body: object, status: int = 200) -> Response:
    """A response whose body is this struct as JSON."""
    return Response(msgspec.json.encode(body), status, media_type="application/json")


def plain_error(error: ApiError) -> ErrorBody:
    """An error as OpenAI's clients understand it."""
    return ErrorBody(error.detail)


def error_answer(error: ApiError, path: str) -> Response:
    """The response of an error, with its status, body and headers, as clients of this path understand it."""
    made = _error_of(error, path)
    headers = dict(error.headers)
    if error.status in (408, 413):
        headers["connection"] = "close"  # the rest of the body is not worth reading
    return Response(_encode(made), error.status, headers, media_type="application/json")


def error_event(error: ApiError, path: str) -> bytes:
    """The last event of a stream that fails, as clients of this path understand it."""
    return encoded_event(_error_of(error, path), typed=path.startswith(MESSAGES))


def encoded_event(event: msgspec.Struct, *, typed: bool) -> bytes:
    """An event as it is sent, named by its type where it is `typed`."""
    name = getattr(event, "type", "") if typed else ""
    return (b"event: %b\n" % str(name).encode() if name else b"") + b"data: " + _encode(event) + b"\n\n"


def _error_of(error: ApiError, path: str) -> ErrorBody | MessageErrorBody:
    return message_error(error) if path.startswith(MESSAGES) else plain_error(error)


class EventStreamResponse(Response):
    """A stream of server-sent events. It begins with the first event or wait, so that an error before it has a status
    of its own.

    `produce(write, wait)` writes the events, and calls `wait` now and then while there is nothing to write. When it
    returns, the stream ends with `[DONE]`; when it raises ApiError, with the event that `failure` makes of it and
    without `[DONE]`. Events that are `typed` are named by their type, and the last one of them ends the stream.
    """

    def __init__(
        self,
        produce: Produce,
        headers: Mapping[str, str] | None = None,
        *,
        typed: bool = False,
        failure: Failure = plain_error,
    ) -> None:
        self.status_code = 200
        self.background = None
        self._produce = produce
        self._typed = typed
        self._failure = failure
        self._started = False
        self._comment_at = 0.0
        self._send_event: Send | None = None
        self.init_headers({**HEADERS, **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send_event = scope.get("state", {}).get("send_event", send)
        try:
            await while_connected(receive, self._run(send))
        except ClientDisconnect:
            if not self._started:
                raise

    async def _run(self, send: Send) -> None:
        async def write(event: msgspec.Struct) -> None:
            await self._write(send, self._event(event))

        async def wait() -> None:
            await self._comment(send)

        try:
            await self._produce(write, wait)
        except ApiError as error:
            if not self._started:
                raise
            # A client that does not read yet may do so soon; how long that may take is the connection's business.
            await self._write(send, self._event(self._failure(error)), more=False)
        else:
            await self._write(send, b"" if self._typed else b"data: [DONE]\n\n", more=False)

    def _event(self, event: msgspec.Struct) -> bytes:
        return encoded_event(event, typed=self._typed)

    async def _write(self, send: Send, data: bytes, more: bool = True) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        # All around the endpoint want to know when an answer begins and ends, and not to hand on each event.
        hand_on = self._send_event if more and self._send_event is not None else send
        await hand_on({"type": "http.response.body", "body": data, "more_body": more})

    async def _comment(self, send: Send) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._comment_at:
            self._comment_at = now + COMMENT_SECONDS
            await self._write(send, COMMENT)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, which is cancelled the moment the client goes away. Raises ClientDisconnect.

    The request's body must have been read before.
    """
    # In the task of the request: one of its own, and `asyncio.wait`, cost more than all else that is done for a token.
    task, gone = asyncio.current_task(), False
    assert task is not None
    before = task.cancelling()

    def leave(watching: asyncio.Task[None]) -> None:
        nonlocal gone
        if not watching.cancelled():
            watching.exception()  # whatever ended it, nobody says any more whether the client is there
            gone = True
            task.cancel()

    watching = asyncio.create_task(_disconnect(receive), name="watch client")
    watching.add_done_callback(leave)
    try:
        return await work
    except asyncio.CancelledError:
        if gone and task.uncancel() <= before:
            raise ClientDisconnect from None
        raise
    finally:
        watching.remove_done_callback(leave)
        watching.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
