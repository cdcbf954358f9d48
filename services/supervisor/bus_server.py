"""The NATS server of a system, kept up like every other process."""

import asyncio
import json
import os
import socket
from pathlib import Path

from services.supervisor.commands import LOOPBACK, nats_command
from services.supervisor.processes import Supervisor
from shared.bus.server import ServerError, find_server

START_SECONDS = 10.0
POLL_SECONDS = 0.02


async def start_nats(supervisor: Supervisor, store: Path) -> str:
    """The url of a server of our own, with its files in `store`. Raises ServerError and ChildFailed."""
    port, name = free_port(), f"livescale-{os.getpid()}"
    supervisor.start(nats_command(find_server(os.environ), name, port, store))
    try:
        async with asyncio.timeout(START_SECONDS):
            while (found := await server_name(port)) is None:
                supervisor.check()
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise ServerError(f"nats-server was not ready after {START_SECONDS:.0f} s") from None
    # Two servers can meet on one port, and the second one's clients would talk to the first.
    if found != name:
        raise ServerError(f"port {port} was taken by another NATS server, {found}; try again")
    return f"nats://{LOOPBACK}:{port}"


def free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as door:
        port: int = door.getsockname()[1]
        return port


async def server_name(port: int) -> str | None:
    """Who greets on this port; None while nobody does."""
    try:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        return None
    try:
        greeting = await reader.readline()
    finally:
        writer.close()
        await writer.wait_closed()
    return str(json.loads(greeting.removeprefix(b"INFO "))["server_name"]) if greeting else None
