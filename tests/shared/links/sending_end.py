"""One end of a UCX link, as a process: python -m tests.shared.links.sending_end send|receive ADDRESS DIRECTORY.

It says "error", with the reason, when the first channel ends, and "moved" once a second one has carried something.
"""

import asyncio
import sys
from itertools import count
from pathlib import Path

from livescale.shared.links.contract import Buffer, LinkError, Peer
from livescale.shared.links.open import open_link
from livescale.shared.runtime.settings import LinkSettings

SECRET = b"s" * 32
SIZE_BYTES = 8 << 20
REST_SECONDS = 10.0  # after which the network is back


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def move(peer: Peer, end: str, number: int, timeout: float) -> None:
    data = Buffer(memoryview(bytearray(SIZE_BYTES)))
    await (peer.send if end == "send" else peer.receive)(number, data, timeout=timeout)


async def main(end: str, bind: str, directory: Path) -> None:
    link = await open_link(LinkSettings(transport="ucx", bind=bind))
    (directory / f"{end}.new").write_bytes(link.address)
    (directory / f"{end}.new").rename(directory / end)
    other = directory / ("receive" if end == "send" else "send")
    while not other.exists():  # noqa: ASYNC110 - nothing tells of a file
        await asyncio.sleep(0.05)
    peer = await link.connect(other.read_bytes(), timeout=10.0, channel=1, secret=SECRET)
    say("connected")
    try:
        for number in count():
            await move(peer, end, number, 1.0 if end == "send" else 60.0)
    except LinkError as error:
        say(f"error {error}")
    await peer.close()
    await asyncio.sleep(REST_SECONDS)
    peer = await link.connect(other.read_bytes(), timeout=10.0, channel=2, secret=SECRET)
    for number in range(10):
        await move(peer, end, number, 30.0)
    say("moved")
    await asyncio.sleep(1.0)  # until the other end, another process, has what was sent
    await link.close()


asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
