"""Opening nats-py's connection with the settings, and the callbacks, that keep it alive."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from nats.aio.client import Client

from shared.bus.contract import Disconnected

log = structlog.get_logger()


async def connect(
    client: Client,
    url: str,
    name: str,
    timeout: float,
    on_lost: Callable[[], None],
    on_returned: Callable[[], None],
    on_closed: Callable[[], None],
    on_error: Callable[[Exception], None],
) -> None:
    """Raises Disconnected when the server cannot be reached in time."""
    try:
        async with asyncio.timeout(timeout):
            await client.connect(
                url,
                name=name,
                error_cb=_total(on_error),
                disconnected_cb=_total(on_lost),
                reconnected_cb=_total(on_returned),
                closed_cb=_total(on_closed),
                reconnect_time_wait=0.1,  # type: ignore[arg-type]
                max_reconnect_attempts=-1,
                ping_interval=5,
                max_outstanding_pings=2,
            )
    except (TimeoutError, OSError, ValueError) as error:
        reason = client.last_error or error
        await client.close()
        raise Disconnected(f"no NATS server at {url} within {timeout:.3g} s: {reason}") from None


def _total(callback: Callable[..., None]) -> Callable[..., Awaitable[None]]:
    async def safe(*arguments: object) -> None:
        call_safely(callback, *arguments)

    return safe


def call_safely(callback: Callable[..., None], *arguments: object) -> None:
    """nats-py's read loop dies of an exception in a callback, and stays "connected": let none out."""
    try:
        callback(*arguments)
    except Exception:
        log.exception("bus_callback_failed")
