"""Ports for systems that tests start."""

import random
import socket

# None of those that Linux gives to outgoing connections: of these somebody may take one that is not listened on just
# now, for instance while a gateway starts again.
PORTS = range(20_000, 32_000)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    while True:
        port = random.choice(PORTS)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
