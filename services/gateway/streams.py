"""All requests under way, by id: what workers and the registry say is handed to the stream of each request; and those
that wait for a router, while none can be reached."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import assert_never

from prometheus_client import Gauge

from livescale.services.gateway.errors import queue_full
from livescale.services.gateway.metrics import GatewayMetrics
from livescale.services.gateway.request_stream import RequestStream
from livescale.shared.bus.contract import Bus, BusError, Received, Refusal, ServiceAbsent, Subscription
from livescale.shared.messages.membership import LeaseChanged, Report, RouterReport
from livescale.shared.messages.requests import Cancel, Replay, RequestLost, TokenFrame, Tokens
from livescale.shared.policy.invariants import check
from livescale.shared.runtime.clock import Clock
from livescale.shared.runtime.rate_limited_log import RateLimitedLog
from livescale.shared.subjects import CANCEL, CANCEL_WORK, HEARTBEAT, LEASE, REPLAY, TOKENS


class HeldRequests:
    """The requests that wait for a router, as none can be reached: at most `most` new ones. Requests that were accepted
    before are always held."""

    def __init__(self, shown: Gauge, most: int) -> None:
        self._shown = shown
        self._most = most
        self._held = 0

    @contextmanager
    def hold(self, *, is_new: bool) -> Iterator[None]:
        """Hold one request inside the block. Raises ApiError 429 where a new request is one too many."""
        if is_new and self._held >= self._most:
            raise queue_full(f"{self._held} requests already wait until a router answers; try again later.")
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        self._held += more
        self._shown.set(self._held)


REPLAY_TIMEOUT_SECONDS = 1.0
REPLAYS = 3  # how often a worker is asked to fill one gap
# A worker that reconnects to the bus is absent for a moment; one that is absent twice is taken to be gone.
ABSENCES = 2
ABSENT_SECONDS = 0.5


class RequestStreams:
    """The table of streams. `run` hands on what arrives for this gateway; `open` gives a request its place in the
    table."""

    def __init__(self, bus: Bus, gateway: str, metrics: GatewayMetrics, max_requests: int, stream_queue: int) -> None:
        self._bus = bus
        self._gateway = gateway
        # When a worker hangs, each of its streams asks again; this is logged only once in a while.
        self._seldom = RateLimitedLog(lambda: asyncio.get_running_loop().time())
        self._metrics = metrics
        self._max_requests = max_requests
        self._stream_queue = stream_queue
        self._streams: dict[str, RequestStream] = {}
        self._replays: asyncio.TaskGroup | None = None

    async def listen(self) -> Subscription[TokenFrame | RequestLost]:
        """Subscribe to the tokens for this gateway. Called before the first request is taken."""
        return await self._bus.subscribe(TOKENS, gateway=self._gateway)

    async def run(self, arriving: Subscription[TokenFrame | RequestLost]) -> None:
        """Hand on what arrives until cancelled, and ask workers again for tokens that are missing."""
        async with asyncio.TaskGroup() as self._replays:
            await arriving.each(self._hear)

    def _hear(self, received: Received[TokenFrame | RequestLost]) -> None:
        match received.message:
            case TokenFrame() as frame:
                self._dispatch(frame)
            case RequestLost(request_id=request_id, reason=reason):
                if request_id in self._streams:
                    self._streams[request_id].lose(reason)
            case other:
                assert_never(other)

    @contextmanager
    def open(
        self, request_id: str, received: int, version: str | None = None, *, is_new: bool = True
    ) -> Iterator[RequestStream]:
        """A stream that already has `received` tokens, made by this `version` of the model. Raises ApiError 429 where a
        new request is one too many."""
        if is_new and received == 0 and len(self._streams) >= self._max_requests:
            raise queue_full(f"The gateway already has {self._max_requests} requests under way; try again later.")
        stream = self._streams[request_id] = RequestStream(request_id, received, self._stream_queue)
        stream.version = version
        self._metrics.streams.set(len(self._streams))
        try:
            yield stream
        finally:
            stream.close()
            del self._streams[request_id]
            self._metrics.streams.set(len(self._streams))

    def check_invariants(self) -> None:
        """Check that each stream has its own place, and asks again only where it has a worker. Raises
        InvariantBroken."""
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
        """Have requests that no worker has begun submitted again: only the former router knew of them."""
        for stream in self._streams.values():
            stream.doubt()

    def worker_died(self, worker: str, reason: str) -> None:
        """Lose the requests of this worker. The router says the same, unless it died as well."""
        for stream in self._streams.values():
            if stream.worker == worker:
                stream.lose(f"{worker} is gone: {reason}")

    def reconnected(self) -> None:
        """Ask again for all that may have been said while the bus was away."""
        for stream in self._streams.values():
            stream.absences = 0
            stream.doubt()
            self.ask_again(stream)

    def stop(self, request_id: str, worker: str | None) -> None:
        """Cancel a request whose client is gone. The worker is told as well, as the router may be away."""
        self._bus.publish(CANCEL, Cancel(request_id=request_id))
        if worker is not None:
            self._bus.publish(CANCEL_WORK, Cancel(request_id=request_id), id=worker)

    def ask_again(self, stream: RequestStream) -> None:
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
                self._disown(row, frame.worker)  # at once, as a slow reader may look at it much later

    def _disown(self, row: Tokens, worker: str) -> None:
        """Cancel tokens that no request here waits for. This is repeated for every row until they stop, as a cancel may
        be lost. A gateway that was started again does not know what it had asked for."""
        if row.finish_reason is None:
            self.stop(row.request_id, worker)

    def _fill_gap(self, stream: RequestStream) -> None:
        if stream.replaying:
            return
        if stream.replays >= REPLAYS:
            stream.lose(f"tokens from {stream.received} on are missing and worker {stream.worker} does not resend them")
            return
        stream.replays += 1
        worker = stream.worker or "nobody"
        self._seldom.warning("tokens_missing", worker, request=stream.request_id, index=stream.received)
        self.ask_again(stream)

    async def _replay(self, stream: RequestStream, worker: str) -> None:
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

    async def _miss(self, stream: RequestStream, worker: str) -> None:
        if stream.worker != worker:
            return  # another has taken the request over
        stream.absences += 1
        if stream.absences >= ABSENCES:
            stream.lose(f"worker {worker} is gone")
            return
        await asyncio.sleep(ABSENT_SECONDS)
        if stream.absences and not stream.over:  # nothing came in the meantime
            await self._replay(stream, worker)


class Peers:
    """Tells the streams what happens to others: a router took office, a worker died, the bus is back. Requests go on by
    themselves unless one of these happens."""

    def __init__(self, bus: Bus, streams: RequestStreams) -> None:
        self._bus = bus
        self._streams = streams
        self._router_epoch = 0

    async def run(self) -> None:
        """Follow routers, workers and the bus until cancelled."""
        routers = await self._bus.subscribe(HEARTBEAT, service="router")
        leases = await self._bus.subscribe(LEASE)
        self._bus.watch_connection(self._connection_changed)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_routers(routers), name="routers")
            group.create_task(self._follow_leases(leases), name="leases")

    async def _follow_routers(self, reports: Subscription[Report]) -> None:
        async for received in reports:
            report = received.message
            # Only the router in office sends this report. A former one has a lower epoch, however late it wakes.
            if isinstance(report, RouterReport) and report.epoch > self._router_epoch:
                self._router_epoch = report.epoch
                self._streams.router_changed()

    async def _follow_leases(self, leases: Subscription[LeaseChanged]) -> None:
        async for received in leases:
            change = received.message
            if change.service == "worker" and change.state == "dead":
                self._streams.worker_died(change.id, change.reason)

    def _connection_changed(self, connected: bool) -> None:
        if connected:
            self._streams.reconnected()


@dataclass(frozen=True)
class Backend:
    """What every generation works with: the bus, the streams of tokens, and what is counted and held."""

    bus: Bus
    clock: Clock
    streams: RequestStreams
    metrics: GatewayMetrics
    held: HeldRequests
