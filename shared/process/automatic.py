"""Settings that a process chooses itself, so that many containers can start with the same ones.

`--id auto` is SERVICE-MACHINE-N with the first N that no other process of this machine has; so is its system port the
Nth. `--bind auto` is the address under which the bus sees this machine.
"""

import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import urlsplit

from msgspec.structs import replace

from livescale.shared.bus.identity import DEFAULT_PORT
from livescale.shared.messages.membership import ServiceName
from livescale.shared.process.system_port import join_address, split_address
from livescale.shared.runtime.settings import LinkSettings, ProcessSettings

AUTO = "auto"
MOST_NUMBERS = 1024
BUS_SECONDS, LOOK_SECONDS = 30.0, 0.5

S = TypeVar("S", bound=ProcessSettings)


class CannotChoose(Exception):
    """A setting is auto and cannot be chosen; the message says why, and what to do."""


@contextmanager
def chosen(settings: S, service: ServiceName) -> Iterator[S]:
    """The settings without any auto. Inside the block the id is this process's alone. Raises CannotChoose."""
    if isinstance(settings, LinkSettings) and settings.bind == AUTO:
        settings = replace(settings, bind=address_towards(settings.nats_url))
    if settings.id != AUTO:
        yield settings
        return
    name = id_prefix(service, settings.host_name or socket.gethostname())
    with claim_number(f"{settings.namespace}-{name}") as number:
        yield replace(settings, id=f"{name}-{number}", system_bind=nth_address(settings.system_bind, number))


def nth_address(system_bind: str, number: int) -> str:
    """The system port of the process with this number: the first has that of `system_bind`, the others those after it.
    0 stays 0, as it takes a free one."""
    host, port = split_address(system_bind)
    return join_address(host, port + number if port else 0)


def id_prefix(service: str, host: str) -> str:
    """What ids of a service begin with on a machine: its name, as far as ids may have it."""
    machine = re.sub("[^a-z0-9]+", "-", host.lower()).strip("-")
    return f"{service}-{machine}" if machine else service


@contextmanager
def claim_number(name: str) -> Iterator[int]:
    """The first number that nobody on this machine has claimed under this name, claimed inside the block.

    An abstract unix socket is the claim: the kernel gives it up when the process ends, however it ends. Processes share
    numbers where they share a network namespace, as they share the machine's address there. Raises CannotChoose.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as claim:
        for number in range(MOST_NUMBERS):
            try:
                claim.bind(f"\0livescale-id-{name}-{number}")
            except OSError:  # claimed
                continue
            yield number
            return
    raise CannotChoose(f"id: auto: {MOST_NUMBERS} processes have an id that begins with {name}; name one with --id")


def address_towards(nats_url: str, patience: float = BUS_SECONDS) -> str:
    """The IPv4 address of this machine from which packets go to the NATS server.

    A server that starts at the same time may have no address yet: it is looked up again, for `patience` seconds.
    Nothing is sent. Raises CannotChoose.
    """
    parts = urlsplit(nats_url)
    host, port = parts.hostname or "", parts.port or DEFAULT_PORT
    until = time.monotonic() + patience
    while True:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((host, port))
                address: str = probe.getsockname()[0]
                return address
        except OSError as error:
            if time.monotonic() >= until:
                raise CannotChoose(
                    f"bind: auto: no way from here to the NATS server {host!r}: {error}; name an address with --bind"
                ) from None
        time.sleep(LOOK_SECONDS)
