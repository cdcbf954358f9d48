"""uvicorn inside an actor.

It listens on the gateway's socket, leaves signals to the process, and ends in good order.
"""

import asyncio
import ipaddress
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import structlog
import uvicorn
from starlette.types import ASGIApp

from livescale.services.gateway.protocol import LimitedHttp
from livescale.shared.process.run import Ends
from livescale.shared.runtime.files import write_atomically

CLEANUP_SECONDS = 1.0
BACKLOG = 2048
# What the kernel keeps for a client that does not read: enough for hundreds of events, not for tens of thousands.
SEND_BUFFER_BYTES = 128 * 1024

# Longer than clients and proxies keep a connection for reuse (5 to 60 s). The side that sends the next request must be
# the one that closes, or its request may meet a connection that is just being closed.
KEEP_ALIVE_SECONDS = 75

log = structlog.get_logger()


def allow_connections() -> int:
    """Raise this process's limit of open files, of which each connection is one, as far as it may go. Returns the
    limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class PortInUse(Ends):
    """The address cannot be listened on. The message says which and why."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket bound to `host`; port 0 takes a free one. Raises PortInUse."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        bound = socket.socket(family, kind)
    except OSError as error:
        raise PortInUse(f"cannot listen on {host}:{port}: {error}; choose another --host") from None
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
    """The URL under which clients on this machine reach the socket."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(bound: socket.socket) -> bool:
    """Whether only this machine can reach the socket."""
    return ipaddress.ip_address(bound.getsockname()[0]).is_loopback


def say_ready(url: str, file: str) -> None:
    """Tell the log that the gateway listens at `url`, and whoever reads `file`, if one is named."""
    if file:
        write_atomically(Path(file), msgspec.json.encode({"url": url}))
    log.info("gateway_listening", url=url)


class Server:
    """Serves until it is cancelled. Then it takes no new request, and gives the running ones `grace_seconds`.

    A client that leaves its answer unread for `unread_seconds` is cut off.
    """

    def __init__(self, app: ASGIApp, bound: socket.socket, grace_seconds: int, unread_seconds: float) -> None:
        config = uvicorn.Config(
            app,
            loop="none",
            http=_protocol(unread_seconds),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=grace_seconds,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
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
            # Requests that had no time left were cancelled, and still clean up.
            if self._server.server_state.tasks:
                await asyncio.wait(self._server.server_state.tasks, timeout=CLEANUP_SECONDS)
            raise


def _protocol(unread: float) -> type[LimitedHttp]:
    """A class of connections with this limit: uvicorn makes the connections itself, and passes on no arguments."""

    class Configured(LimitedHttp):
        unread_seconds = unread

    return Configured


class _WithoutSignals(uvicorn.Server):
    """uvicorn without its own signal handlers: the process handles signals, and cancels the server."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
