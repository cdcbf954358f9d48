"""Links within one event loop that work under virtual time: messages arrive at once, unless something shapes them."""

import asyncio
from collections import defaultdict

from livescale.shared.links.contract import Buffer, LinkError, Peer
from livescale.shared.links.link_path import LinkPath

Mail = defaultdict[tuple[bytes, bytes, int, int], "asyncio.Future[bytes]"]


NO_LINK = LinkPath("memory", "there is no link")


def here(buffer: Buffer) -> memoryview:
    """In the host's memory, as everything under virtual time."""
    assert isinstance(buffer.view, memoryview)
    return buffer.view


class VirtualPeer:
    path = NO_LINK

    def __init__(self, mail: Mail, own: bytes, other: bytes, channel: int) -> None:
        self._mail = mail
        self._own = own
        self._other = other
        self._channel = channel

    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        self._mail[self._own, self._other, self._channel, tag].set_result(bytes(here(buffer)))

    async def receive(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        message = self._mail[self._other, self._own, self._channel, tag]
        try:
            async with asyncio.timeout(timeout):
                here(buffer)[:] = await asyncio.shield(message)
        except TimeoutError:
            raise LinkError(f"receive {tag:#x} took more than {timeout:g} s") from None

    async def close(self) -> None:
        """Do nothing: tasks that wait have a deadline."""


class VirtualLink:
    def __init__(self, mail: Mail, address: bytes) -> None:
        self.address = address
        self._mail = mail

    async def connect(self, address: bytes, *, timeout: float, channel: int = 0, secret: bytes = b"") -> Peer:
        return VirtualPeer(self._mail, self.address, address, channel)

    async def close(self) -> None: ...


def new_mail() -> Mail:
    """What is on its way between some links. Within a running loop."""
    return defaultdict(asyncio.get_running_loop().create_future)
