"""The system port of a process: GET /live, /ready and /metrics, for probes and for Prometheus.

The process's own event loop answers, so a loop that hangs does not. Every connection takes one request, as these come
seldom. httptools reads them: uvicorn and starlette would cost every process 3 MB.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path

import httptools
import msgspec
from prometheus_client import CONTENT_TYPE_LATEST

from livescale.shared.bus.contract import ServiceInfo

LAST_PORT = 65535
REQUEST_SECONDS = 5.0  # for a request to arrive and its answer to be taken
MOST_HEAD_BYTES = 16 << 10
MOST_VISITS = 64  # at once; further ones are closed
LOOPBACKS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # of sockets that listen on all addresses

WhyNotReady = Callable[[], Awaitable[str | None]]


async def starting() -> str | None:
    """The reason of a process that still touches memory or opens its link, and has not begun to join."""
    return "it touches its memory and opens its link"


class Condition(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of /live and /ready: which process this is, and why it cannot serve where it cannot."""

    status: str
    service: str
    id: str
    reason: str = ""


class CannotListen(Exception):
    """The address of `--system-bind` cannot be listened on; the message says why, and what to do."""


def split_address(address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT; an IPv6 address is in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(address: str) -> socket.socket:
    """A socket that listens on HOST:PORT; port 0 takes a free one. Raises CannotListen."""
    host, port = split_address(address)
    try:
        if port > LAST_PORT:
            raise OSError(f"ports end at {LAST_PORT}")
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise CannotListen(
            f"system-bind: cannot listen on {address}: {error.strerror or error}; choose another port (0 takes a free "
            "one) or host"
        ) from None


def announced(bound: socket.socket, host_name: str) -> str:
    """The address under which others find the port: on all of a machine's addresses it goes by the machine's name."""
    host, port = bound.getsockname()[:2]
    return join_address(host_name if host in LOOPBACKS else host, port)


def write_address(path: Path, bound: socket.socket) -> None:
    """Write the address under which this machine itself reaches the port. Raises CannotListen."""
    host, port = bound.getsockname()[:2]
    near = LOOPBACKS.get(host, host)
    try:
        path.write_text(f"{join_address(near, port)}\n")
    except OSError as error:
        raise CannotListen(f"system-file: {path}: {error.strerror}; name a file that can be written") from None


class SystemPort:
    """Answers on one port for one process.

    `metrics` makes the Prometheus text. `why_not_ready` tells why the process does not serve its role; None: it does.
    """

    def __init__(self, info: ServiceInfo, metrics: Callable[[], str], why_not_ready: WhyNotReady) -> None:
        self._info = info
        self._metrics = metrics
        self._why_not_ready = why_not_ready
        self._visits: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def serve(self, bound: socket.socket) -> AsyncIterator[None]:
        """Answer on this socket inside the block, which closes it at its end."""
        server = await asyncio.start_server(self._on_connection, sock=bound, limit=MOST_HEAD_BYTES)
        try:
            yield
        finally:
            server.close()
            for visit in self._visits:
                visit.cancel()
            await asyncio.gather(*self._visits, return_exceptions=True)

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._visits) >= MOST_VISITS:
            writer.close()
            return
        visit = asyncio.create_task(self._visit(reader, writer), name="system port")
        self._visits.add(visit)
        visit.add_done_callback(self._visits.discard)

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(head))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a client that is so slow, or sends no HTTP, gets no answer
        finally:
            writer.close()

    async def _answer(self, head: bytes) -> bytes:
        target = _Target()
        try:
            parser = httptools.HttpRequestParser(target)
            parser.feed_data(head)
            method, path = parser.get_method(), httptools.parse_url(target.url).path
        except httptools.HttpParserError:
            return self._tell(HTTPStatus.BAD_REQUEST, "this is no HTTP request")
        if method not in (b"GET", b"HEAD"):
            return self._tell(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are answered here")
        answer = await self._get(path)
        return answer if method == b"GET" else answer[: answer.index(b"\r\n\r\n") + 4]

    async def _get(self, path: bytes) -> bytes:
        match path:
            case b"/live":
                return self._tell(HTTPStatus.OK)
            case b"/ready":
                reason = await self._why_not_ready()
                return self._tell(HTTPStatus.OK if reason is None else HTTPStatus.SERVICE_UNAVAILABLE, reason or "")
            case b"/metrics":
                return response(HTTPStatus.OK, CONTENT_TYPE_LATEST, self._metrics().encode())
            case _:
                return self._tell(HTTPStatus.NOT_FOUND, "this port serves /live, /ready and /metrics")

    def _tell(self, status: HTTPStatus, reason: str = "") -> bytes:
        word = "ok" if status is HTTPStatus.OK else status.phrase.lower().removeprefix("service ")
        condition = Condition(word, self._info.name, self._info.id, reason)
        return response(status, "application/json", msgspec.json.encode(condition) + b"\n")


class _Target:
    """What httptools calls with a request's target, which may come in parts."""

    def __init__(self) -> None:
        self.url = b""

    def on_url(self, part: bytes) -> None:
        self.url += part


def response(status: HTTPStatus, content_type: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {content_type}\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
