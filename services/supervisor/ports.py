"""Free ports for the servers of a system, which find them free again when they are started again."""

import errno
import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

LOOPBACK = "127.0.0.1"
OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
USUAL_OUTGOING = range(32_768, 61_000)  # Linux; IANA's begin later
FIRST_PORT, LAST_PORT = 10_000, 65_535  # below are those of well-known services
PORT_TRIES = 100


def free_port() -> int:
    """A port of loopback that nobody listens on; see `free_ports`. Raises OSError as that does."""
    return free_ports(LOOPBACK, 1)[0]


def free_ports(host: str, count: int) -> list[int]:
    """Ports that nobody listens on, and that no outgoing connection gets: such a connection may take a port of its
    range before the server starts, or while it starts again. Raises OSError where too few are found, or the host's
    address is none of this machine."""
    found: list[int] = []
    with ExitStack() as bound:
        for port in random.sample(lasting_ports(outgoing_ports()), PORT_TRIES):
            try:
                bound.enter_context(bind(host, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise OSError(errno.EADDRINUSE, f"of {PORT_TRIES} ports that were tried {len(found)} are free")


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to this address. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with ExitStack() as cleanup:
        bound = cleanup.enter_context(socket.socket(family, kind, protocol))
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        cleanup.pop_all()
        return bound


def lasting_ports(outgoing: range) -> Sequence[int]:
    """The ports for servers: the larger part of what the system does not give to outgoing connections. Where these may
    have nearly all, it is all ports."""
    sides = range(FIRST_PORT, max(FIRST_PORT, outgoing.start)), range(outgoing.stop, LAST_PORT + 1)
    widest = max(sides, key=len)
    return widest if len(widest) >= PORT_TRIES else range(FIRST_PORT, LAST_PORT + 1)


def outgoing_ports() -> range:
    """The ports that the system gives to outgoing connections; those of most systems where it does not say."""
    try:
        first, last = map(int, OUTGOING.read_text().split())
    except (OSError, ValueError):
        return USUAL_OUTGOING
    return range(first, last + 1)
