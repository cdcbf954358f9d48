"""uvicorn inside an actor: our socket, our signals, and an orderly end."""

import asyncio
import ipaddress
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

CLEANUP_SECONDS = 1.0
BACKLOG = 2048
# What the kernel keeps for a client that does not read: hundreds of events, not tens of thousands.
SEND_BUFFER_BYTES = 128 * 1024
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time

log = structlog.get_logger()


class PortInUse(Exception):
    """The address cannot be listened on; the text says which and why."""


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to `host`; port 0 takes a free one. Raises PortInUse."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        bound = socket.socket(family, kind)
    except OSError as error:
        raise PortInUse(f"cannot listen on {host}:{port}: {error}") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise PortInUse(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port, or 0") from None
    bound.setblocking(False)
    return bound


def url_of(bound: socket.socket) -> str:
    """Where clients on this machine reach it."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(bound: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ipaddress.ip_address(bound.getsockname()[0]).is_loopback


class Server:
    """Serves until cancelled; then takes no new request and gives the running ones `grace_seconds`.

    A client that leaves its answer unread for `unread_seconds` is cut off.
    """

    def __init__(self, app: ASGIApp, bound: socket.socket, grace_seconds: int, unread_seconds: float) -> None:
        config = uvicorn.Config(
            app,
            loop="none",
            http=_cutting_off_after(unread_seconds),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=grace_seconds,
        )
        self._server = _WithoutSignals(config)
        self._bound = bound

    async def run(self) -> None:
        serving = asyncio.create_task(self._server.serve(sockets=[self._bound]), name="http")
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            self._server.should_exit = True
            await serving
            # Those that had no time left were cancelled, and clean up.
            if self._server.server_state.tasks:
                await asyncio.wait(self._server.server_state.tasks, timeout=CLEANUP_SECONDS)
            raise


def _cutting_off_after(unread_seconds: float) -> type[HttpToolsProtocol]:
    """uvicorn's protocol would wait for a client that does not read for as long as the client likes."""

    class CuttingOff(HttpToolsProtocol):
        _cutting_off: asyncio.TimerHandle | None = None

        def pause_writing(self) -> None:
            super().pause_writing()
            self._cutting_off = self.loop.call_later(unread_seconds, self._cut_off)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._keep()

        def connection_lost(self, exc: Exception | None) -> None:
            self._keep()
            super().connection_lost(exc)

        def _keep(self) -> None:
            if self._cutting_off is not None:
                self._cutting_off.cancel()
                self._cutting_off = None

        def _cut_off(self) -> None:
            log.warning("slow_reader_cut_off", client=self.client, unread_seconds=unread_seconds)
            # By a reset: the kernel would go on offering what lies unread long after the connection is closed here.
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.transport.abort()

    return CuttingOff


class _WithoutSignals(uvicorn.Server):
    """Signals belong to the process, which cancels us."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
