"""nats-py's client, but for how messages come in and go out: straight, where it has a task and a queue for each.

A token takes this way on every step of every worker: each task more is a turn of the event loop more.
"""

from collections.abc import Callable
from dataclasses import dataclass

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport

from livescale.shared.bus.headers import Headers, unpack

# As much as may wait in front of the socket; then nats-py's own queue, which waits for it, has its turn.
ROOM_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message as it came. Its headers are taken apart by whoever needs them."""

    subject: str
    reply: str
    data: bytes
    head: bytes | None

    @property
    def headers(self) -> Headers:
        return unpack(self.head) if self.head else {}


Deliver = Callable[[Arrived], None]


class SturdyClient(Client):
    """Its read loop also survives a message that it cannot take apart: odd headers, a reply that is no text."""

    def __init__(self) -> None:
        super().__init__()
        self._delivers: dict[int, Deliver] = {}

    async def listen(self, subject: str, queue: str, deliver: Deliver) -> Subscription:
        """`deliver` is called by the read loop itself: it must not wait."""
        self._delivers[self._sid + 1] = deliver  # the number that `subscribe` takes before it waits for anything
        return await self.subscribe(subject, queue=queue, cb=_never)

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        self._delivers.pop(sid, None)
        super()._remove_sub(sid, max_msgs)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        try:
            deliver = self._delivers.get(sid)
            if deliver is None:
                await super()._process_msg(sid, subject, reply, data, headers)
            else:
                deliver(Arrived(subject.decode(), reply.decode(), data, headers))
        except Exception as error:  # noqa: BLE001 the boundary: one bad message must not end the reading of all
            await self._error_cb(error)

    def write(self, command: bytes) -> bool:
        """Hand it to the socket, behind what nats-py has pending. False where that has not taken what came before, or
        is no plain one."""
        writer = self._transport._io_writer if isinstance(self._transport, TcpTransport) else None
        if writer is None or writer.transport.get_write_buffer_size() > ROOM_BYTES:
            return False
        try:
            writer.writelines([*self._pending, command])
        except (OSError, RuntimeError):  # it is broken; the read loop is about to notice
            return False
        self._pending, self._pending_data_size = [], 0
        return True

    async def write_in_turn(self, command: bytes) -> None:
        """Through nats-py's own queue, which waits for the socket. Raises nats.errors.Error and OSError."""
        if not self.is_connected:
            raise nats.errors.ConnectionClosedError
        await self._send_command(command)
        await self._flush_pending()


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
