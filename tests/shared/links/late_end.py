"""A process that connects late: python -m tests.shared.links.late_end ADDRESS DIRECTORY.

It opens a link, and connects to the address in DIRECTORY/peer each time that a line comes in. It says what came of it.
"""

import asyncio
import sys
from pathlib import Path

from livescale.shared.links.contract import LinkError
from livescale.shared.links.open import open_link
from livescale.shared.runtime.settings import LinkSettings


async def main(bind: str, directory: Path) -> None:
    link = await open_link(LinkSettings(transport="ucx", bind=bind))
    (directory / "mine").write_bytes(link.address)
    said = "opened"
    while True:
        sys.stdout.write(f"{said}\n")
        sys.stdout.flush()
        if not await asyncio.to_thread(sys.stdin.readline):
            break
        try:
            await link.connect((directory / "peer").read_bytes(), timeout=10.0)
            said = "connected"
        except LinkError as error:
            said = str(error)
    await link.close()


asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
