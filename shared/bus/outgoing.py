"""What leaves this process: at once where the socket takes it, else by a bounded queue. So publishing never waits."""

import asyncio
from collections import Counter, deque

import nats.errors

from livescale.shared.bus.client import SturdyClient

LIMIT_BYTES = 16 << 20


class Outgoing:
    """Commands of the protocol, in order. While the connection is down, or the queue full, they are dropped and
    counted."""

    def __init__(self, client: SturdyClient, counts: Counter[str]) -> None:
        self._client = client
        self._counts = counts
        self._commands: deque[bytes] = deque()
        self._size_bytes = 0
        self._filled = asyncio.Event()

    def put(self, command: bytes) -> bool:
        """Whether it is on its way."""
        if not self._client.is_connected:
            self._counts["dropped_disconnected"] += 1
            return False
        if not self._commands and self._client.write(command):
            self._counts["sent"] += 1
            return True
        if self._size_bytes + len(command) > LIMIT_BYTES:
            self._counts["dropped_full"] += 1
            return False
        self._commands.append(command)
        self._size_bytes += len(command)
        self._filled.set()
        return True

    def drop_all(self) -> None:
        """The connection is gone; what waited would come too late."""
        self._counts["dropped_disconnected"] += len(self._commands)
        self._commands.clear()
        self._size_bytes = 0

    async def run(self) -> None:
        """Empties the queue."""
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
