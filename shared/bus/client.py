"""nats-py's client, with a shorter way for messages in and out.

nats-py has a read loop, and a task and a queue for each subscription. Here messages are cut out of the bytes as they
arrive, and handed on at once. Every token that a worker makes takes this way, and each task on it would cost a turn of
the event loop. What the socket does not take at once waits in a bounded queue, so that publishing never waits.
"""

import asyncio
import os
import socket
from collections import Counter, deque
from collections.abc import Callable

import nats.errors
from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.protocol.parser import AWAITING_CONTROL_LINE

from livescale.shared.bus.codec import Headers, unpack

# As much as may wait in front of the socket; then nats-py's own queue, which waits for it, has its turn.
ROOM_BYTES = 64 << 10

LIMIT_BYTES = 16 << 20


class Arrived(Struct, frozen=True):
    """A message as it came. Its headers are parsed only by those that need them."""

    subject: str
    reply: str
    data: bytes
    head: bytes | None  # or empty, where it has no headers

    @property
    def headers(self) -> Headers:
        return unpack(self.head) if self.head else {}


Deliver = Callable[[Arrived], None]
LINE_END = b"\r\n"


class SturdyClient(Client):
    """nats-py's client, but it survives messages it cannot parse: odd headers, a reply that is no text. `on_error` is
    told of them."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        super().__init__()
        self._on_error = on_error
        self._delivers: dict[int, Deliver] = {}
        self._socket: asyncio.WriteTransport | None = None  # of the connection that there is now, if it is a plain one
        self._direct: socket.socket | None = None  # the same one for sends at once, unless it is encrypted

    async def listen(self, subject: str, queue: str, deliver: Deliver) -> Subscription:
        """Subscribe to `subject`. `deliver` is called with each message as its bytes arrive, so it must not wait."""
        self._delivers[self._sid + 1] = deliver  # the number that `subscribe` takes before it waits for anything
        return await self.subscribe(subject, queue=queue, cb=_never)

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        self._delivers.pop(sid, None)
        super()._remove_sub(sid, max_msgs)

    async def _read_loop(self) -> None:
        """Take what arrives, from now until this connection ends; nats-py's own loop gets what is no message of
        ours."""
        plain = self._transport if isinstance(self._transport, TcpTransport) else None
        reader, writer = (None, None) if plain is None else (plain._io_reader, plain._io_writer)
        transport = self._socket = None if writer is None else writer.transport
        direct = self._direct = None if transport is None else second_handle(transport)
        if reader is not None:
            feed = reader.feed_data

            def take(data: bytes) -> None:
                rest = self._deliver_all(data) if self._is_idle(reader) else data
                if rest:
                    feed(rest)

            reader.feed_data = take  # type: ignore[method-assign, assignment]
        try:
            await super()._read_loop()
        finally:
            if self._socket is transport:
                self._socket = self._direct = None
            if direct is not None:
                direct.close()

    def _is_idle(self, reader: asyncio.StreamReader) -> bool:
        """Whether nats-py waits for bytes, and has no part of a message: then what arrives next begins one."""
        parser = self._ps
        return reader._waiter is not None and parser.state == AWAITING_CONTROL_LINE and not parser.buf  # type: ignore[attr-defined]

    def _deliver_all(self, data: bytes) -> bytes:
        """Deliver the messages at the beginning of `data`. Returns the bytes from the first thing on that is no whole
        message of ours."""
        start = 0
        while (end := data.find(LINE_END, start)) >= 0:
            kind, *words = data[start:end].split()
            if kind not in (b"MSG", b"HMSG") or not words[-1].isdigit():
                break
            head = int(words.pop(-2)) if kind == b"HMSG" else 0
            body, size = end + len(LINE_END), int(words[-1])
            deliver = self._delivers.get(int(words[1]))
            if deliver is None or body + size + len(LINE_END) > len(data):
                break
            start = body + size + len(LINE_END)
            reply = words[2] if len(words) > 3 else b""
            self._deliver(deliver, words[0], reply, data[body + head : body + size], data[body : body + head])
        return data[start:]

    def _deliver(self, deliver: Deliver, subject: bytes, reply: bytes, data: bytes, head: bytes) -> None:
        try:
            deliver(Arrived(subject.decode(), reply.decode(), data, head))
        except Exception as error:  # noqa: BLE001 the boundary: one bad message must not end the reading of all
            self._on_error(error)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        deliver = self._delivers.get(sid)
        if deliver is not None:
            self._deliver(deliver, subject, reply, data, headers)
            return
        try:
            await super()._process_msg(sid, subject, reply, data, headers)
        except Exception as error:  # noqa: BLE001 as above
            self._on_error(error)

    def write(self, command: bytes) -> bool:
        """Hand `command` to the socket, behind what nats-py has pending. False where the socket has not taken what came
        before, is closing, or is no plain one."""
        transport = self._socket
        if transport is None or transport.is_closing() or transport.get_write_buffer_size() > ROOM_BYTES:
            return False
        data = b"".join([*self._pending, command]) if self._pending else command
        try:
            sent = 0 if transport.get_write_buffer_size() else self._send_at_once(data)
            if sent < len(data):
                transport.write(data[sent:])
        except (OSError, RuntimeError):  # it is broken; the read loop is about to notice
            return False
        if self._pending:
            self._pending, self._pending_data_size = [], 0
        return True

    def _send_at_once(self, data: bytes) -> int:
        """Send as much of `data` as the kernel takes now; nothing may wait before it. Returns the number of bytes.

        Other threads run meanwhile: the event loop's own write would hold the interpreter, and a worker's step with it.
        """
        try:
            return 0 if self._direct is None else self._direct.send(data)
        except BlockingIOError:
            return 0

    async def write_in_turn(self, command: bytes) -> None:
        """Send `command` through nats-py's own queue, which waits for the socket.

        Raises nats.errors.Error and OSError.
        """
        if not self.is_connected:
            raise nats.errors.ConnectionClosedError
        await self._send_command(command)
        await self._flush_pending()


def second_handle(transport: asyncio.WriteTransport) -> socket.socket | None:
    """The socket of `transport`, by a descriptor of its own: that of a transport that was closed may be another file's.
    None where what is sent has to be encrypted."""
    if transport.get_extra_info("sslcontext") is not None or transport.is_closing():
        return None
    handle = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
    handle.setblocking(False)
    return handle


def publication(subject: str, reply: str, head: bytes, data: bytes) -> bytes:
    """The protocol's command that sends a message with headers."""
    return b"HPUB %s %s %d %d\r\n%s%s\r\n" % (
        subject.encode(),
        reply.encode(),
        len(head),
        len(head) + len(data),
        head,
        data,
    )


async def _never(message: Msg) -> None:
    raise RuntimeError(f"{message.subject}: nats-py's own queue is not used")


class SendQueue:
    """Sends commands of the protocol in their order. While the connection is down, or the queue is full, they are
    dropped and counted.

    What is sent in one turn of the event loop goes to the socket together, at its end. A write wakes the server, which
    may take the processor from this process at once, although it may have more to do: a worker begins its next step.
    """

    def __init__(self, client: SturdyClient, counts: Counter[str]) -> None:
        self._client = client
        self._counts = counts
        self._commands: deque[bytes] = deque()  # while there are some, a turn's end is to come, or `run` sends them
        self._size_bytes = 0
        self._filled = asyncio.Event()

    def put(self, command: bytes) -> bool:
        """Send `command`, or queue it. False where it is dropped instead."""
        if not self._client.is_connected:
            self._counts["dropped_disconnected"] += 1
            return False
        if self._size_bytes + len(command) > LIMIT_BYTES:
            self._counts["dropped_full"] += 1
            return False
        if not self._commands:
            asyncio.get_running_loop().call_soon(self._end_turn)
        self._commands.append(command)
        self._size_bytes += len(command)
        return True

    def _end_turn(self) -> None:
        sent = len(self._commands)
        if sent == 0:
            return
        if not self._client.write(b"".join(self._commands)):
            self._filled.set()
            return
        self._counts["sent"] += sent
        self._commands.clear()
        self._size_bytes = 0

    def drop_all(self) -> None:
        """Drop what is queued when the connection is lost: it would arrive too late."""
        self._counts["dropped_disconnected"] += len(self._commands)
        self._commands.clear()
        self._size_bytes = 0

    async def run(self) -> None:
        """Send what is queued, for ever: the task of a connection."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            while self._commands:
                command = self._commands.popleft()
                self._size_bytes -= len(command)
                try:
                    await self._client.write_in_turn(command)
                    self._counts["sent"] += 1
                except (nats.errors.Error, OSError):
                    self._counts["dropped_disconnected"] += 1
