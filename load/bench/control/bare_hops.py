"""Three processes in the places of gateway, router and worker. They pass a request and its tokens on over the same NATS
server and the same sockets, and do nothing else: what these hops cost is what the machine's scheduling costs.

They take one request at a time. Each knows the few words of NATS' protocol and of HTTP that it needs.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

from livescale.load.bench.control.bare_stream import TOKEN
from livescale.load.bench.transfer.node_messages import end_with_parent
from livescale.services.supervisor.commands import WORKER_NICE

STEP_SECONDS = 0.001  # of the worker, which computes nothing and keeps its core busy as long
END_SECONDS = 5.0
CONNECT_SECONDS = 10.0
ROLES = ("worker", "router", "gateway")  # in the order of their starts: a message that nobody hears is lost
READY = b"ready\n"
NATS_URL = "BARE_NATS_URL"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
MOST_BYTES = 1 << 16


class BareBus:
    """A connection to a NATS server. It listens on the subject `bare.<role>`."""

    def __init__(self, url: str, role: str) -> None:
        at = urlsplit(url)
        self._socket = socket.create_connection((at.hostname or "", at.port or 0), CONNECT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(None)
        self._rest = b""
        self._line()  # INFO
        login = json.dumps({"verbose": False, "user": at.username, "pass": at.password}).encode()
        self._socket.sendall(b"CONNECT %s\r\nSUB bare.%s 1\r\nPING\r\n" % (login, role.encode()))
        while self._line() != b"PONG":
            pass

    def publish(self, role: bytes, data: bytes) -> None:
        self._socket.sendall(b"PUB bare.%s %d\r\n%s\r\n" % (role, len(data), data))

    def next(self) -> bytes:
        """Wait for a message, and return its data."""
        while not (line := self._line()).startswith(b"MSG "):
            if line == b"PING":
                self._socket.sendall(b"PONG\r\n")
        size = int(line.rsplit(b" ", 1)[1])
        while len(self._rest) < size + 2:
            self._read()
        data, self._rest = self._rest[:size], self._rest[size + 2 :]
        return data

    def _line(self) -> bytes:
        while b"\r\n" not in self._rest:
            self._read()
        line, self._rest = self._rest.split(b"\r\n", 1)
        return line

    def _read(self) -> None:
        data = self._socket.recv(MOST_BYTES)
        if not data:
            sys.exit("the NATS server closed the connection")
        self._rest += data


def gateway(bus: BareBus, listener: socket.socket) -> None:
    """Pass requests of one connection on, and answer each with as many tokens as come."""
    client, _ = listener.accept()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while body := http_body(client):
        bus.publish(b"router", body)
        client.sendall(HEAD)
        while (data := bus.next()) != b"end":
            if data.startswith(b"data:"):
                client.sendall(chunk(data))
        client.sendall(chunk(b"data: [DONE]\n\n") + chunk(b""))


def http_body(client: socket.socket) -> bytes:
    """The body of the next request; empty where the client is gone."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = client.recv(MOST_BYTES)
        if not more:
            return b""
        data += more
    head, body = data.split(b"\r\n\r\n", 1)
    [size] = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    while len(body) < size:
        body += client.recv(MOST_BYTES)
    return body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def router(bus: BareBus) -> None:
    """Pass requests on, and answer the gateway; the worker's answers end here."""
    while True:
        data = bus.next()
        if data.startswith(b"{"):
            bus.publish(b"worker", data)
            bus.publish(b"gateway", b"taken")


def worker(bus: BareBus) -> None:
    """Answer the router, and send a token after each step."""
    while True:
        tokens = int(json.loads(bus.next())["max_tokens"])
        bus.publish(b"router", b"taken")
        for number in range(1, tokens + 1):
            until = time.perf_counter() + STEP_SECONDS
            while time.perf_counter() < until:
                pass
            bus.publish(b"gateway", TOKEN % (b'"length"' if number == tokens else b"null"))
        bus.publish(b"gateway", b"end")
        bus.publish(b"router", b"ended")


def main(role: str, descriptor: int) -> None:
    """Take a role until the parent ends it, or ends."""
    end_with_parent()
    bus = BareBus(os.environ[NATS_URL], role)
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    if role == "gateway":
        gateway(bus, socket.socket(fileno=descriptor))
    elif role == "router":
        router(bus)
    else:
        os.nice(WORKER_NICE)
        worker(bus)


@contextmanager
def bare_hops(nats_url: str) -> Iterator[str]:
    """The three processes: the URL that one client may connect to."""
    with ExitStack() as cleanup:
        listener = cleanup.enter_context(socket.create_server(("127.0.0.1", 0)))
        for role in ROLES:
            cleanup.enter_context(started(role, nats_url, listener.fileno()))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def started(role: str, nats_url: str, descriptor: int) -> Iterator[None]:
    """Start one of the bare processes, and return once it listens."""
    command = [sys.executable, "-c", f"from {__name__} import main; main({role!r}, {descriptor})"]
    env = {**os.environ, NATS_URL: nats_url}  # it holds a password, and arguments are for all to see
    with subprocess.Popen(command, pass_fds=[descriptor], stdout=subprocess.PIPE, env=env) as process:
        try:
            if process.stdout is None or process.stdout.readline() != READY:
                raise RuntimeError(f"the bare {role} did not start")
            yield
        finally:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
