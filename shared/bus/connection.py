"""Opening nats-py's connection with the settings, and the callbacks, that keep it alive."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import nats.errors
import structlog
from nats.aio.client import Client

from livescale.shared.bus.contract import Disconnected
from livescale.shared.bus.identity import NatsFiles, connect_options, inbox_prefix, with_login, without_password

CLOSE_TRIES = 50
CLOSE_SECONDS = 2.0
NO_FILES = NatsFiles()

log = structlog.get_logger()


def _ignore(*_: object) -> None: ...


@dataclass(frozen=True)
class Callbacks:
    """What is called at events of the connection: lost and returned (again and again), closed (for good), an error."""

    lost: Callable[[], None] = _ignore
    returned: Callable[[], None] = _ignore
    closed: Callable[[], None] = _ignore
    error: Callable[[Exception], None] = _ignore


async def connect(
    client: Client, url: str, name: str, timeout: float, callbacks: Callbacks, files: NatsFiles = NO_FILES
) -> None:
    """Connect `client`, and have it reconnect for ever.

    Raises Disconnected when the server cannot be reached in time, BusError for a malformed `url` or bad files.
    """
    shown, url = without_password(url), with_login(url, files.login)
    options = connect_options(files)
    connecting = asyncio.create_task(
        client.connect(
            url,
            name=name,
            error_cb=_total(callbacks.error),
            disconnected_cb=_total(callbacks.lost),
            reconnected_cb=_total(callbacks.returned),
            closed_cb=_total(callbacks.closed),
            reconnect_time_wait=0.1,  # type: ignore[arg-type]
            max_reconnect_attempts=-1,
            ping_interval=5,
            max_outstanding_pings=2,
            inbox_prefix=inbox_prefix(url),
            **options,
        ),
        name="bus connect",
    )
    try:
        async with asyncio.timeout(timeout):
            await asyncio.shield(connecting)
    except (TimeoutError, OSError, ValueError, nats.errors.Error) as error:
        raise Disconnected(f"no NATS server at {shown} within {timeout:.3g} s: {client.last_error or error}") from None
    finally:
        await _end(connecting)
        if not client.is_connected:
            await close(client)


async def close(client: Client) -> None:
    """Close the connection for good, also one that nats-py is trying to open again."""
    for _ in range(CLOSE_TRIES):
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):  # a broken TLS handshake may never say that it is over
                await client.close()
        retrying = client._reconnection_task
        if retrying is None or retrying.done():
            return
        retrying.cancel()
        await asyncio.wait([retrying], timeout=0.1)


async def _end(task: asyncio.Task[None]) -> None:
    # Before Python 3.12 `wait_for` swallows a cancellation that meets a failing connect: the client would go on
    # connecting for ever.
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.1)
    if not task.cancelled():
        task.exception()  # the caller knows already, or waits no longer


def _total(callback: Callable[..., None]) -> Callable[..., Awaitable[None]]:
    async def safe(*arguments: object) -> None:
        call_safely(callback, *arguments)

    return safe


def call_safely(callback: Callable[..., None], *arguments: object) -> None:
    """Call `callback` and log what it raises: nats-py's read loop would die of it and stay "connected"."""
    try:
        callback(*arguments)
    except Exception:
        log.exception("bus_callback_failed")
