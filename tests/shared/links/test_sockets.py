"""What sockets alone do."""

import asyncio
from contextlib import suppress

from livescale.shared.links.open import open_link
from livescale.shared.runtime.settings import LinkSettings


async def test_strangers_at_the_socket_are_shown_out() -> None:
    link = await open_link(LinkSettings(transport="socket"))
    port = int(link.address.rpartition(b":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(60):
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()
    await link.close()
