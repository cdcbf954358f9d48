"""A process's membership: it joins the registry, keeps its epoch, and reports twice a second and at every change."""

import asyncio
from collections.abc import Callable
from contextvars import copy_context

import structlog
from msgspec.structs import replace

from livescale.shared.bus.contract import Bus, BusError, Refusal
from livescale.shared.messages.membership import Beat, Join, Leave, Report, ServiceName
from livescale.shared.messages.registry import WasAway
from livescale.shared.runtime.clock import Clock, own_pid
from livescale.shared.runtime.rate_limited_log import RateLimitedLog
from livescale.shared.subjects import AWAY, HEARTBEAT, JOIN, LEAVE, STALE

REPORT_SECONDS = 0.5
TOLD_SECONDS = 1.0  # peers do not notice a shorter sleep, so it is not reported
JOIN_TIMEOUT_SECONDS = 2.0
RETRY_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0)  # the last one repeats

log = structlog.get_logger()


class Membership:
    """Keeps this process a member. Run `run()` beside the actor's loops; call `changed()` when a report would say
    something new.

    `report` makes the heartbeat, given the epoch; without one it is a `Beat`. `on_stale` is called when the registry
    had declared this process dead: whatever it was entrusted with is no longer its own. `place` is a GPU or host of the
    topology, or empty; `kernels` are those that a worker computes with; `system` is the address of the system port.
    """

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        service: ServiceName,
        id: str,
        host: str,
        address: bytes | None = None,
        report: Callable[[int], Report] | None = None,
        on_stale: Callable[[], None] = lambda: None,
        place: str = "",
        kernels: str | None = None,
        system: str = "",
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._join = Join(
            service=service,
            id=id,
            pid=0,  # known once it runs
            host=host,
            address=address,
            place=place or None,
            kernels=kernels,
            system=system or None,
        )
        self._report = report or (lambda epoch: Beat(service=service, id=id, epoch=epoch))
        self._on_stale = on_stale
        self._epoch = 0
        self._joined = asyncio.Event()
        self._over: asyncio.Future[None] | None = None  # of the reports, where one fails
        self._next: asyncio.Handle | None = None  # report
        self._is_due = False  # the next report, in the next turn of the loop
        self._context = copy_context()
        self._away = 0.0  # seconds, at the last report
        self._seldom = RateLimitedLog(clock.now)

    @property
    def epoch(self) -> int:
        """The epoch of this process's membership, which grows with every join; 0 before the first."""
        return self._epoch

    async def joined(self) -> int:
        """Wait until this process is a member. Returns its epoch."""
        await self._joined.wait()
        return self._epoch

    async def why_not_ready(self) -> str | None:
        """Why this process is no member just now; None where it is one."""
        if self._joined.is_set():
            return None
        return "it was declared dead and joins again" if self._epoch else "the registry has not admitted it yet"

    def changed(self) -> None:
        """Send a report now instead of at the next heartbeat."""
        if self._next is not None and not self._is_due:
            self._is_due = True
            self._next.cancel()
            self._next = asyncio.get_running_loop().call_soon(self._tell, context=self._context)

    async def run(self) -> None:
        """Join and report until cancelled, then leave. Raises Refusal where the registry refuses this process."""
        self._join = replace(self._join, pid=own_pid())
        self._bus.watch_connection(lambda connected: self.changed())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._stay_member(), name="membership")
                group.create_task(self._report_for_ever(), name="heartbeat")
        finally:
            # After the last heartbeat: one that came later would be taken for a stale one's.
            service, id = self._join.service, self._join.id
            self._bus.publish(LEAVE, Leave(service=service, id=id, epoch=self._epoch), service=service, id=id)

    async def _stay_member(self) -> None:
        refusals = await self._bus.subscribe(STALE, id=self._join.id)
        await self._join_registry()
        async for received in refusals:
            # A refusal of an epoch that we have left behind arrives late, and says nothing new.
            if received.message.epoch >= self._epoch:
                log.warning("membership_lost", epoch=self._epoch)
                self._joined.clear()
                self._on_stale()
                await self._join_registry()

    async def _join_registry(self) -> None:
        attempt = 0
        while True:
            try:
                answer = await self._bus.call(JOIN, self._join, timeout=JOIN_TIMEOUT_SECONDS)
                break
            except BusError as error:
                if isinstance(error, Refusal) and 400 <= error.code < 500 and error.code not in (408, 429):
                    raise
                self._seldom.warning("join_not_answered", JOIN.pattern, error=str(error))
            await asyncio.sleep(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])
            attempt += 1
        self._epoch = answer.epoch
        self._joined.set()
        self.changed()
        log.info("joined", epoch=answer.epoch)

    async def _report_for_ever(self) -> None:
        """Report from the joining on: each report sets when the next one is due."""
        await self._joined.wait()
        loop = asyncio.get_running_loop()
        self._over, self._context, self._away = loop.create_future(), copy_context(), self._clock.away
        # Each of thousands waits for its next report. A task that did would cost several times as much.
        self._tell()
        try:
            await self._over
        finally:
            if self._next is not None:
                self._next.cancel()
                self._next = None

    def _tell(self) -> None:
        """Report now, if this process is a member; it is told when it has joined again."""
        assert self._over is not None, "reports have begun"
        if self._over.done():
            return
        self._is_due = False
        try:
            if self._clock.away != self._away:
                self._tell_away()
            if self._joined.is_set():
                report = self._report(self._epoch)
                self._bus.publish(HEARTBEAT, report, service=report.service, id=report.id)
        except Exception as error:  # noqa: BLE001 the task that runs the reports raises it
            self._over.set_exception(error)
        if not self._is_due:
            self._next = asyncio.get_running_loop().call_later(REPORT_SECONDS, self._tell, context=self._context)

    def _tell_away(self) -> None:
        before, self._away = self._away, self._clock.away
        if (seconds := self._away - before) >= TOLD_SECONDS:
            service, id, at = self._join.service, self._join.id, self._clock.wall()
            told = WasAway(service=service, id=id, host=self._join.host, seconds=seconds, at=at)
            self._bus.publish(AWAY, told, service=service, id=id)
