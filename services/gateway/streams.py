"""The requests under way, by id: token frames from workers are handed to the stream of each request."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import assert_never

from livescale.services.gateway.errors import queue_full
from livescale.services.gateway.metrics import GatewayMetrics
from livescale.services.gateway.sequence import Fresh, Gap, TokenSequence
from livescale.services.gateway.silence import Silence
from livescale.shared.bus.contract import Bus, BusError, Refusal, ServiceAbsent, Subscription
from livescale.shared.messages.requests import Cancel, Replay, RequestLost, TokenFrame, Tokens
from livescale.shared.policy.invariants import check
from livescale.shared.runtime.rate_limited_log import RateLimitedLog
from livescale.shared.subjects import CANCEL, CANCEL_WORK, REPLAY, TOKENS

# A worker that is silent for so long may have sent a frame that was lost.
SILENCE_SECONDS = 1.0
REPLAY_TIMEOUT_SECONDS = 1.0
REPLAYS = 3  # for one gap
# A worker that reconnects to the bus is absent for a moment; one that is missed twice is gone.
ABSENCES = 2
ABSENT_SECONDS = 0.5


@dataclass(frozen=True)
class Lost:
    """Nobody works on this request any more; it may be submitted again."""

    reason: str


@dataclass(frozen=True)
class TooSlow:
    """The client reads slower than tokens are made, and had its time to catch up."""


@dataclass(frozen=True)
class Unplaced:
    """No worker was heard of yet, and the router may not know of the request: submit it again, under the same id."""


@dataclass(frozen=True)
class Silent:
    """Nothing came for a while: a frame may have been lost."""


Event = Fresh | Lost | TooSlow | Unplaced | Silent


class Stream:
    """What happened to one submitted request, in order. Bounded: a reader that lags too far ends it."""

    def __init__(self, request_id: str, received: int, limit: int) -> None:
        self.request_id = request_id
        self.worker: str | None = None
        self.version: str | None = None  # of the model that makes the tokens
        self.replaying = False
        self.replays = 0
        self.absences = 0
        self.over = False
        self._sequence = TokenSequence(received)
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._limit = limit
        self._silence = Silence(SILENCE_SECONDS, lambda: self._events.put_nowait(Silent()))

    @property
    def received(self) -> int:
        return self._sequence.received

    async def next(self) -> Event:
        self._silence.begin()
        try:
            return await self._events.get()
        finally:
            self._silence.end()

    def close(self) -> None:
        """Nobody reads it any more."""
        self._silence.close()

    def is_of(self, version: str | None) -> bool:
        """Whether tokens of this version continue it: the first that come say by which it is answered."""
        self.version = self.version or version
        return version is None or version == self.version

    def accept(self, row: Tokens) -> Gap | None:
        """Take what is new; a Gap where tokens are missing."""
        new = None if self.over else self._sequence.accept(row)
        if isinstance(new, Fresh):
            self.replays = self.absences = 0
            if self._events.qsize() >= self._limit:
                self._end(TooSlow())
            else:
                self._events.put_nowait(new)
                self.over = new.finish_reason is not None
            return None
        return new

    def lose(self, reason: str) -> None:
        self._end(Lost(reason))

    def doubt(self) -> None:
        """Whoever was to find a worker for this request may have forgotten it."""
        if self.worker is None and not self.over:
            self._events.put_nowait(Unplaced())

    def _end(self, event: Lost | TooSlow) -> None:
        if not self.over:
            self.over = True
            self._events.put_nowait(event)


class Streams:
    """The table. `run` dispatches what arrives for this gateway; `open` holds a request's place in it."""

    def __init__(self, bus: Bus, gateway: str, metrics: GatewayMetrics, max_requests: int, stream_queue: int) -> None:
        self._bus = bus
        self._gateway = gateway
        # Of a worker that hangs each of its streams asks again.
        self._seldom = RateLimitedLog(lambda: asyncio.get_running_loop().time())
        self._metrics = metrics
        self._max_requests = max_requests
        self._stream_queue = stream_queue
        self._streams: dict[str, Stream] = {}
        self._replays: asyncio.TaskGroup | None = None

    async def listen(self) -> Subscription[TokenFrame | RequestLost]:
        """Before the first request is taken."""
        return await self._bus.subscribe(TOKENS, gateway=self._gateway)

    async def run(self, arriving: Subscription[TokenFrame | RequestLost]) -> None:
        async with asyncio.TaskGroup() as self._replays:
            async for received in arriving:
                match received.message:
                    case TokenFrame() as frame:
                        self._dispatch(frame)
                    case RequestLost(request_id=request_id, reason=reason):
                        if request_id in self._streams:
                            self._streams[request_id].lose(reason)
                    case other:
                        assert_never(other)

    @contextmanager
    def open(self, request_id: str, received: int, version: str | None = None) -> Iterator[Stream]:
        """A stream that already has `received` tokens, of this `version` of the model. Raises ApiError 429 where a new
        one is one too many."""
        if received == 0 and len(self._streams) >= self._max_requests:
            raise queue_full(f"The gateway has {self._max_requests} requests under way.")
        stream = self._streams[request_id] = Stream(request_id, received, self._stream_queue)
        stream.version = version
        self._metrics.streams.set(len(self._streams))
        try:
            yield stream
        finally:
            stream.close()
            del self._streams[request_id]
            self._metrics.streams.set(len(self._streams))

    def check_invariants(self) -> None:
        """Each stream has its own place, and only who has a worker asks it again. Raises InvariantBroken."""
        check(self._broken())

    def _broken(self) -> Iterator[str]:
        for id, stream in self._streams.items():
            if stream.request_id != id:
                yield f"gateway: {stream.request_id} is in the place of {id}"
            if stream.replaying and stream.worker is None:
                yield f"gateway: {id} asks nobody again"
            if stream.replays > REPLAYS:
                yield f"gateway: {id} asked {stream.replays} times for one gap"

    def router_changed(self) -> None:
        """What no worker has begun was known to the router alone."""
        for stream in self._streams.values():
            stream.doubt()

    def worker_died(self, worker: str, reason: str) -> None:
        """The registry's word. The router says the same, unless it died as well."""
        for stream in self._streams.values():
            if stream.worker == worker:
                stream.lose(f"{worker} is gone: {reason}")

    def reconnected(self) -> None:
        """Whatever was said while the bus was away has to be said again."""
        for stream in self._streams.values():
            stream.absences = 0
            stream.doubt()
            self.ask_again(stream)

    def stop(self, request_id: str, worker: str | None) -> None:
        """Nobody waits for this request any more. The worker is told too: the router may be away."""
        self._bus.publish(CANCEL, Cancel(request_id=request_id))
        if worker is not None:
            self._bus.publish(CANCEL_WORK, Cancel(request_id=request_id), id=worker)

    def ask_again(self, stream: Stream) -> None:
        """Have the worker send what the stream lacks, unless it has been asked already."""
        if stream.worker is None or stream.replaying or stream.over or self._replays is None:
            return
        stream.replaying = True
        self._metrics.replays.inc()
        self._replays.create_task(self._replay(stream, stream.worker), name=f"replay {stream.request_id}")

    def _dispatch(self, frame: TokenFrame) -> None:
        for row in frame.rows:
            stream = self._streams.get(row.request_id)
            if stream is None or stream.over:
                self._disown(row, frame.worker)
                continue
            if not stream.is_of(frame.version):
                self._bus.publish(CANCEL_WORK, Cancel(request_id=row.request_id), id=frame.worker)
                continue
            stream.worker = frame.worker
            if stream.accept(row) is not None:
                self._fill_gap(stream)
            elif stream.over:
                self._disown(row, frame.worker)  # at once: a reader that lags may not look for long

    def _disown(self, row: Tokens, worker: str) -> None:
        """Nobody here waits for these tokens. Said for every row until they stop: a cancel may be lost, and a gateway
        that was started anew does not know what it had asked for."""
        if row.finish_reason is None:
            self.stop(row.request_id, worker)

    def _fill_gap(self, stream: Stream) -> None:
        if stream.replaying:
            return
        if stream.replays >= REPLAYS:
            stream.lose(f"tokens from {stream.received} on are missing and worker {stream.worker} does not resend them")
            return
        stream.replays += 1
        worker = stream.worker or "nobody"
        self._seldom.warning("tokens_missing", worker, request=stream.request_id, index=stream.received)
        self.ask_again(stream)

    async def _replay(self, stream: Stream, worker: str) -> None:
        message = Replay(request_id=stream.request_id, index=stream.received, gateway=self._gateway)
        try:
            await self._bus.call(REPLAY, message, timeout=REPLAY_TIMEOUT_SECONDS, id=worker)
        except ServiceAbsent:
            await self._miss(stream, worker)
        except BusError as error:
            if isinstance(error, Refusal) and error.code == 404 and stream.worker == worker:
                stream.lose(f"worker {worker} does not know the request any more: {error.message}")
            else:
                self._seldom.warning("replay_not_answered", worker, request=stream.request_id, error=str(error))
        finally:
            stream.replaying = False

    async def _miss(self, stream: Stream, worker: str) -> None:
        if stream.worker != worker:
            return  # another has taken the request over
        stream.absences += 1
        if stream.absences >= ABSENCES:
            stream.lose(f"worker {worker} is gone")
            return
        await asyncio.sleep(ABSENT_SECONDS)
        if stream.absences and not stream.over:  # nothing came meanwhile
            await self._replay(stream, worker)
