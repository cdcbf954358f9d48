"""The stream of one submitted request: what workers send for it, in order, and the silence in between."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from livescale.services.gateway.progress import Fresh, Gap, TokenSequence
from livescale.shared.messages.requests import Tokens

# When a worker is silent for this long, a frame of it may have been lost.
SILENCE_SECONDS = 1.0


@dataclass(frozen=True)
class Lost:
    """The stream has ended: no worker runs the request any more, and it may be submitted again."""

    reason: str


@dataclass(frozen=True)
class TooSlow:
    """The stream has ended: the client reads more slowly than tokens are made, and had its time to catch up."""


@dataclass(frozen=True)
class Unplaced:
    """No worker was heard of yet, and the router may not know of the request: submit it again, under the same id."""


@dataclass(frozen=True)
class Silent:
    """Nothing came for a while; a frame may have been lost."""


class SilenceTimer:
    """Calls `on_silence` for every `seconds` in which a reader waits in vain. One timer serves a whole stream: it is
    set anew when it fires, and not with every token. Call `close` at the end."""

    def __init__(self, seconds: float, on_silence: Callable[[], None]) -> None:
        self._seconds = seconds
        self._on_silence = on_silence
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        self._timer = self._loop.call_later(seconds, self._look)

    def begin(self) -> None:
        """Note that the reader begins to wait for an event."""
        self._since = self._loop.time()

    def end(self) -> None:
        """Note that the reader does not wait any more."""
        self._since = None

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        now, left = self._loop.time(), self._seconds
        if self._since is not None:
            left = self._since + self._seconds - now
        if left <= 0:
            self._since, left = now, self._seconds
            self._on_silence()
        self._timer = self._loop.call_later(left, self._look)


Event = Fresh | Lost | TooSlow | Unplaced | Silent


class RequestStream:
    """The events of one submitted request, in order. The number of unread events is bounded: a reader that lags too far
    ends the stream."""

    def __init__(self, request_id: str, received: int, limit: int) -> None:
        self.request_id = request_id
        self.worker: str | None = None
        self.version: str | None = None  # of the model that makes the tokens
        self.replaying = False
        self.replays = 0
        self.absences = 0
        self.over = False
        self._came = asyncio.Event()
        self._sequence = TokenSequence(received)
        self._events: deque[Event] = deque()
        self._reader: asyncio.Future[None] | None = None  # that waits for an event
        self._limit = limit
        self._silence = SilenceTimer(SILENCE_SECONDS, lambda: self._put(Silent()))

    @property
    def received(self) -> int:
        return self._sequence.received

    async def next(self) -> Event:
        """Wait for the next event; a silence is an event as well. A stream has one reader."""
        while not self._events:
            self._reader = asyncio.get_running_loop().create_future()
            self._silence.begin()
            try:
                await self._reader
            finally:
                self._reader = None
                self._silence.end()
        return self._events.popleft()

    def _put(self, event: Event) -> None:
        # With every token: asyncio's queue takes several times as long.
        self._events.append(event)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    @property
    def has_come(self) -> bool:
        """Whether a worker has the request, as tokens of it or its loss have come."""
        return self._came.is_set()

    async def comes_within(self, seconds: float) -> bool:
        """Wait for so long at most until something has come. Returns whether it has."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._came.wait()
        return self._came.is_set()

    def close(self) -> None:
        """Stop the timer, as the stream is not read any more."""
        self._silence.close()

    def is_of(self, version: str | None) -> bool:
        """Whether tokens of this version of the model continue the stream. The first tokens decide which version
        answers the request."""
        self.version = self.version or version
        return version is None or version == self.version

    def accept(self, row: Tokens) -> Gap | None:
        """Take what is new in the row; returns a Gap where tokens before it are missing."""
        new = None if self.over else self._sequence.accept(row)
        if isinstance(new, Fresh):
            self.replays = self.absences = 0
            self._came.set()
            if len(self._events) >= self._limit:
                self._end(TooSlow())
            else:
                self._put(new)
                self.over = new.finish_reason is not None
            return None
        return new

    def lose(self, reason: str) -> None:
        """End the stream, as no worker runs the request any more."""
        self._end(Lost(reason))

    def doubt(self) -> None:
        """Have the request submitted again if no worker has begun it: the router that was to place it may have
        forgotten it."""
        if self.worker is None and not self.over:
            self._put(Unplaced())

    def _end(self, event: Lost | TooSlow) -> None:
        if not self.over:
            self.over = True
            self._came.set()
            self._put(event)
