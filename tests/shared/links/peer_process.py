"""A process with a link, for tests that kill or stop it: says its address, connects back, sends for ever."""

import asyncio
import sys

from livescale.shared.links.contract import Buffer
from livescale.shared.links.open import open_link
from livescale.shared.runtime.settings import LinkSettings

CHUNK = 2 << 20  # large enough to be copied by its receiver


async def run(transport: str) -> None:
    link = await open_link(LinkSettings(transport=transport))  # type: ignore[arg-type]
    sys.stdout.write(link.address.hex() + "\n")
    sys.stdout.flush()
    peer = await link.connect(bytes.fromhex(sys.stdin.readline()), timeout=60)
    for tag in range(1_000_000):
        await peer.send(tag, Buffer(memoryview(bytes(CHUNK))), timeout=60)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
