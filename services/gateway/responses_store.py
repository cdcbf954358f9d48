"""Responses that are kept for their clients: on the bus's server, so that any gateway answers for them."""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

import structlog

from livescale.services.gateway.settings import GatewaySettings
from livescale.shared.bus.contract import BusError, KeyValue
from livescale.shared.messages.responses import RESPONSES, KeptResponse
from livescale.shared.process.run import World
from livescale.shared.runtime.clock import Clock

MOST_KEPT_BYTES = 1 << 30  # of responses, of all clients

log = structlog.get_logger()


@dataclass
class Shelf:
    """What this gateway keeps for one client: the bytes of each response, and the moment when it is gone."""

    kept: OrderedDict[str, tuple[int, float]] = field(default_factory=OrderedDict)
    size_bytes: int = 0

    def add(self, id: str, size_bytes: int, until: float) -> None:
        self.drop(id)
        self.kept[id] = (size_bytes, until)
        self.size_bytes += size_bytes

    def drop(self, id: str) -> None:
        size_bytes, _ = self.kept.pop(id, (0, 0.0))
        self.size_bytes -= size_bytes

    def expire(self, now: float) -> None:
        """Forget responses that the store has dropped by itself, as their time is over."""
        while self.kept and next(iter(self.kept.values()))[1] <= now:
            self.drop(next(iter(self.kept)))


class ResponseStore:
    """Keeps each response for `seconds`, and at most `most_bytes` for each client and gateway: the oldest give way.

    A client finds its own responses only. Where `seconds` is 0 nothing is kept.
    """

    def __init__(self, bucket: KeyValue, clock: Clock, seconds: float, most_bytes: int) -> None:
        self._bucket = bucket
        self._clock = clock
        self._seconds = seconds
        self._most_bytes = most_bytes
        self._shelves: dict[str, Shelf] = {}

    @property
    def keeps(self) -> bool:
        return self._seconds > 0

    async def put(self, client: str, kept: KeptResponse) -> bool:
        """Keep a response, or what is new of it. Returns whether it could be kept."""
        size_bytes = len(kept.response.encode()) + len(kept.conversation.encode())
        if not self.keeps or size_bytes > self._most_bytes:
            return False
        now = self._clock.now()
        shelf = self._shelves.setdefault(client, Shelf())
        shelf.expire(now)
        shelf.add(kept.id, size_bytes, now + self._seconds)
        try:
            while shelf.size_bytes > self._most_bytes:
                await self.delete(client, next(iter(shelf.kept)))
            await self._bucket.put(_key(client, kept.id), kept)
        except BusError as error:
            shelf.drop(kept.id)
            log.warning("response_not_kept", response=kept.id, error=str(error))
            return False
        finally:
            self._shelves = {name: one for name, one in self._shelves.items() if one.kept}
        return True

    async def get(self, client: str, id: str) -> KeptResponse | None:
        """A response of this client, None where there is none. Raises BusError."""
        return await self._bucket.get(_key(client, id), KeptResponse) if self.keeps else None

    async def delete(self, client: str, id: str) -> None:
        """Delete a response from the store. Raises BusError."""
        if client in self._shelves:
            self._shelves[client].drop(id)
        await self._bucket.delete(_key(client, id))


def open_response_store(world: World, settings: GatewaySettings) -> ResponseStore:
    """Where responses are kept on the bus's server."""
    bucket = world.bus.bucket(RESPONSES, settings.responses_seconds, MOST_KEPT_BYTES)
    return ResponseStore(bucket, world.clock, settings.responses_seconds, settings.responses_bytes)


def _key(client: str, id: str) -> str:
    """The client's part is of one length, and neither part has a character that keys may not have."""
    owner, one = (hashlib.blake2b(text.encode(), digest_size=16).hexdigest() for text in (client, id))
    return f"{owner}.{one}"
