"""uvicorn's HTTP/1.1 with limits on the time and size of a request's head, and on how long an answer may lie unread."""

import asyncio
import socket
import struct
import time
from collections.abc import Callable

import httptools
import structlog
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.responses import error_event
from livescale.shared.runtime.rate_limited_log import RateLimitedLog

# Within this time the head of a request has to come whole. It holds for the first request too, so that no client keeps
# a connection that it does not use.
HEAD_SECONDS = 20.0
HEAD_BYTES = 64 * 1024
MOST_HEADERS = 100
LINGER_SECONDS = 1.0
MOST_HELD_BYTES = 16 * 1024  # of an answer, within one turn of the event loop
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, with no time to linger

log = structlog.get_logger()
seldom = RateLimitedLog(time.monotonic)


class LimitedHttp(HttpToolsProtocol):
    """One connection. Input that is not HTTP, or too much of it, is answered in JSON like every other error, and the
    connection is closed.

    The request of a client that leaves its answer unread for `unread_seconds` is cancelled, and after as long again the
    connection is cut; uvicorn would wait for ever. A client of HTTP/1.0 gets no chunks, which it does not know.
    """

    unread_seconds = 30.0
    _head_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None
    _fault: ApiError | None = None
    _over = False
    _in_head = True
    _begun = False
    _earlier_bytes = 0  # bytes that came since the last whole message
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._joined = JoinedWrites(self.transport, self._close, self.loop)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_unread_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._over or self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        try:
            if self._in_head and self._earlier_bytes > HEAD_BYTES:
                self._refuse_head(f"The request line and headers are larger than {HEAD_BYTES} bytes.")
            self._earlier_bytes += len(data)
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # no other protocol is spoken here; the request itself is answered
        except (httptools.HttpParserError, ApiError) as error:
            # uvicorn's own callbacks fail only at a target that they cannot take apart.
            reason = "Invalid target" if isinstance(error, httptools.HttpParserCallbackError) else str(error)
            fault = self._fault or ApiError(400, f"This is not HTTP/1.1: {reason}.", code="invalid_http")
            seldom.warning("request_unreadable", str(fault.detail.code), client=str(self.client), error=str(fault))
            self._end_with(fault)
        else:
            # Most heads come whole, and with their body: they need no timer.
            if self._in_head and (self._begun or self._earlier_bytes):
                self._await_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begun, self._head_bytes = True, 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count(len(name) + len(value))

    def on_headers_complete(self) -> None:
        self._in_head = self._begun = False
        self._stop_head_timer()
        super().on_headers_complete()
        self.cycle.transport = self._joined  # type: ignore[assignment]
        if self.parser.get_http_version() == "1.0":
            _send_until_closed(self.cycle)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head, self._earlier_bytes = True, 0

    def on_response_complete(self) -> None:
        self._joined.flush()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self.loop.call_later(self.unread_seconds, self._give_up)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self._over:
            self._stop_unread_timer()

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._answering:
            self._await_head()  # a client that still reads an answer may take its time
        elif self._begun:
            self._end_with(
                ApiError(
                    408, f"The request line and headers did not arrive within {HEAD_SECONDS:.0f} s.", code="timeout"
                )
            )
        else:
            self.transport.close()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES or len(self.headers) > MOST_HEADERS:
            self._refuse_head(f"More than {HEAD_BYTES} bytes of headers, or more than {MOST_HEADERS} of them.")

    def _refuse_head(self, message: str) -> None:
        self._fault = ApiError(431, message, code="headers_too_large")
        raise self._fault

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _end_with(self, error: ApiError) -> None:
        if self._answering:
            if self.cycle.response_started:
                self.transport.abort()  # an error cannot be sent in the middle of an answer
                return
            self.cycle.disconnected = True  # the endpoint's own answer is not sent any more
            self.cycle.message_event.set()
        head = (
            b"content-type: application/json\r\nconnection: close\r\n"
            b"content-length: " + str(len(error.body)).encode() + b"\r\n\r\n"
        )
        self.transport.write(STATUS_LINE[error.status] + head + error.body)
        self._linger()

    def _close(self) -> None:
        """Close the connection after its last answer."""
        if self.cycle.more_body:
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        """Stop writing, and close a little later. If it was closed at once, with bytes of the client unread, the
        connection would be reset and the answer lost."""
        self._over = True
        self.flow.resume_reading()
        self.transport.write_eof()
        self._stop_head_timer()
        self._head_timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _give_up(self) -> None:
        """Cancel what is streamed, whose reader does not read. Its last event, an error, waits behind the unread ones
        for as long again."""
        log.warning("answer_left_unread", client=self.client, unread_seconds=self.unread_seconds)
        if not (self._answering and self.cycle.response_started):
            self._cut_off()
            return
        self._over = True
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        message = f"The answer was left unread for {self.unread_seconds:g} s, so the request was cancelled."
        error = ApiError(408, message, type="timeout_error", code="timeout")
        event = error_event(error, self.cycle.scope["path"])
        self._joined.flush()
        self.transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event) if self.cycle.chunked_encoding else event)
        self.transport.close()
        self._unread_timer = self.loop.call_later(self.unread_seconds, self._cut_off)

    def _cut_off(self) -> None:
        log.warning("slow_reader_cut_off", client=self.client)
        # By a reset, as otherwise the kernel would keep the unread bytes long after the connection is closed here.
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.transport.abort()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None


class JoinedWrites:
    """The transport that uvicorn writes answers to. What is written in one turn of the event loop leaves in one piece:
    an answer's head with its first event, and its last event with its end. So its client is woken once for both.

    `close` takes the place of the transport's own.
    """

    def __init__(
        self, transport: asyncio.Transport, close: Callable[[], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.is_closing = transport.is_closing
        self._transport = transport
        self._close = close
        self._loop = loop
        self._held: list[bytes] = []
        self._held_bytes = 0

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self.flush)
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > MOST_HELD_BYTES:
            self.flush()  # so that a client that does not read is noticed

    def flush(self) -> None:
        """Write all data that is held as one piece, unless the connection is closing."""
        if self._held:
            data, self._held, self._held_bytes = b"".join(self._held), [], 0
            if not self._transport.is_closing():
                self._transport.write(data)

    def close(self) -> None:
        self.flush()
        self._close()


def _send_until_closed(cycle: RequestResponseCycle) -> None:
    """Have a cycle send its body as it is, of any length: its end is the connection's."""
    send = cycle.send
    cycle.chunked_encoding = False

    async def send_plain(message: ASGISendEvent) -> None:
        if message["type"] == "http.response.body":
            cycle.expected_content_length = len(message.get("body", b""))  # else it would count what was announced
        await send(message)

    cycle.send = send_plain  # type: ignore[method-assign]
