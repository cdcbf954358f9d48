"""A process that takes messages over one channel after the other: python -m tests.shared.links.kept_end.

It says its address and is told its peer's. For each number that comes in it takes a message on the channel with this
number, closes it, and says the number.
"""

import asyncio
import sys

from livescale.shared.links.contract import Buffer
from livescale.shared.links.open import open_link
from livescale.shared.runtime.settings import LinkSettings


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def main() -> None:
    link = await open_link(LinkSettings(transport="ucx"))
    say(link.address.hex())
    address = bytes.fromhex(await asyncio.to_thread(sys.stdin.readline))
    while line := await asyncio.to_thread(sys.stdin.readline):
        peer = await link.connect(address, timeout=30, channel=int(line))
        await peer.receive(1, Buffer(memoryview(bytearray(9))), timeout=30)
        await peer.close()
        say(line.strip())
    await link.close()


if __name__ == "__main__":
    asyncio.run(main())
