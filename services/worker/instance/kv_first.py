"""Parameters yield to KV where both leave one worker: a request waits for its KV, a scale only for the last byte."""

import asyncio

from livescale.shared.transfer.waiting import Changes

KV_BYTES = 3  # leave before each byte of parameters while there is always KV to send
STUCK_SECONDS = 0.1  # KV that does not move takes nothing from a link, and is not waited for
MOST_SECONDS = 1.0  # that a chunk waits for KV that hardly moves, as its receivers are slow


class KvFirst:
    """Whether KV is being sent, and when a chunk of parameters may be."""

    def __init__(self) -> None:
        self._sending = 0
        self._left_bytes = 0  # of KV, since it was last quiet, less what chunks have had for it
        self._changes = Changes()

    def begin(self) -> None:
        """Note that a piece of KV is being sent from now on."""
        self._sending += 1

    def end(self, size_bytes: int = 0) -> None:
        """Note that a piece was sent, or with nothing that it failed."""
        self._sending -= 1
        self._left_bytes = self._left_bytes + size_bytes if self._sending else 0
        self._changes.tell()

    async def wait(self, size_bytes: int) -> None:
        """Return when a chunk of so many bytes may leave: no KV does, enough of it has gone before, or too little."""
        if not self._sending:
            return
        now = asyncio.get_running_loop().time
        latest = now() + MOST_SECONDS
        while self._sending and self._left_bytes < KV_BYTES * size_bytes:
            try:
                async with asyncio.timeout_at(min(now() + STUCK_SECONDS, latest)):
                    await self._changes.wait()
            except TimeoutError:
                return
        self._left_bytes -= KV_BYTES * size_bytes if self._sending else 0
