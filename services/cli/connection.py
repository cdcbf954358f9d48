"""How a command finds the bus and asks a question on it."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

import click
import structlog

from livescale.services.supervisor.run_files import find_running, pointer_path
from livescale.shared.bus.contract import Bus, BusError, CallTimeout, Refusal, ServiceAbsent
from livescale.shared.bus.identity import NatsFiles, hide_password
from livescale.shared.runtime.settings import ProcessSettings

T = TypeVar("T")

CALL_SECONDS = 5.0
CONNECT_SECONDS = 2.0


class BusAddress(NamedTuple):
    """Where the bus is. `origin` ends the error message of a server that cannot be reached: how the url was found."""

    url: str
    namespace: str
    files: NatsFiles
    origin: str = ""


def bus_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command --nats-url and --namespace."""
    url = click.option(
        "--nats-url",
        envvar=["LIVESCALE_NATS_URL", "NATS_URL"],
        show_envvar=True,
        help="URL of the system's NATS server; by default that of the `livescale up` that runs on this machine.",
    )
    namespace = click.option(
        "--namespace",
        envvar="LIVESCALE_NAMESPACE",
        show_envvar=True,
        help="Name of the system on that server; by default that of the `livescale up` that runs on this machine.",
    )
    return url(namespace(command))


def find_bus(nats_url: str | None, namespace: str | None) -> BusAddress:
    """Return the bus that flag or environment name, else that of the system on this machine, else the default."""
    note = pointer_path()
    running = find_running(note) if nats_url is None else None
    default = ProcessSettings()
    url = nats_url or (running.nats_url if running else default.nats_url)
    return BusAddress(
        url=url,
        namespace=namespace or (running.namespace if running else default.namespace),
        # A url with a password needs no credential files.
        files=NatsFiles.from_environment(os.environ) if hide_password(url) == url else NatsFiles(),
        origin="" if nats_url or running else f"; {note} names no running `livescale up`, and NATS_URL is not set",
    )


def ask(address: BusAddress, question: Callable[[Bus], Awaitable[T]]) -> T:
    """Run `question` over a connection of its own and return its result. Raises ClickException with what to do."""
    return asyncio.run(_ask(address, question))


async def _ask(address: BusAddress, question: Callable[[Bus], Awaitable[T]]) -> T:
    from livescale.shared.bus.nats import NatsBus

    # The error that ends the command tells what the connection would log.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        bus = await NatsBus.connect(address.url, address.namespace, "cli", files=address.files, timeout=CONNECT_SECONDS)
    except BusError as error:
        raise connection_error(error, address) from None
    try:
        return await question(bus)
    except Refusal as refusal:
        raise click.ClickException(refusal.message) from None
    except ServiceAbsent as error:
        raise click.ClickException(
            f"{error}, at {hide_password(address.url)} in namespace {address.namespace!r}; "
            "start that service, or choose another --nats-url or --namespace"
        ) from None
    except CallTimeout as error:
        raise click.ClickException(f"{error}; `livescale status` shows which processes are alive") from None
    except BusError as error:
        raise click.ClickException(str(error)) from None
    finally:
        await bus.close()


def connection_error(error: BusError, address: BusAddress) -> click.ClickException:
    return click.ClickException(f"{error}{address.origin}: start `livescale up`, or name a server with --nats-url")


def nats_req(address: BusAddress, subject: str, body: str = "") -> str:
    """The command line by which the nats CLI asks the same."""
    server = address.url if hide_password(address.url) == address.url else '"$NATS_URL"'
    return f"nats --server {server} req livescale.{address.namespace}.{subject} '{body}'"
