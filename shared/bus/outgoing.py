"""What leaves this process: a bounded queue that one task empties, so that publishing never waits."""

import asyncio
from collections import Counter, deque

import nats.errors
from nats.aio.client import Client

from shared.bus.headers import Headers

LIMIT_BYTES = 16 << 20

Packet = tuple[str, bytes, Headers, str]


class Outgoing:
    """Keeps the order. While the connection is down, or the queue full, messages are dropped and counted."""

    def __init__(self, client: Client, counts: Counter[str]) -> None:
        self._client = client
        self._counts = counts
        self._packets: deque[Packet] = deque()
        self._size_bytes = 0
        self._filled = asyncio.Event()

    def put(self, subject: str, data: bytes, headers: Headers, reply: str = "") -> bool:
        """Whether the message is on its way."""
        if not self._client.is_connected:
            self._counts["dropped_disconnected"] += 1
            return False
        if self._size_bytes + len(data) > LIMIT_BYTES:
            self._counts["dropped_full"] += 1
            return False
        self._packets.append((subject, data, headers, reply))
        self._size_bytes += len(data)
        self._filled.set()
        return True

    def drop_all(self) -> None:
        """The connection is gone; what waited would come too late."""
        self._counts["dropped_disconnected"] += len(self._packets)
        self._packets.clear()
        self._size_bytes = 0

    async def run(self) -> None:
        while True:
            await self._filled.wait()
            self._filled.clear()
            while self._packets:
                subject, data, headers, reply = self._packets.popleft()
                self._size_bytes -= len(data)
                try:
                    await self._client.publish(subject, data, reply, headers)
                    self._counts["sent"] += 1
                except (nats.errors.Error, OSError):
                    self._counts["dropped_disconnected"] += 1
