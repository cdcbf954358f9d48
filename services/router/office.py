"""The office of the router: takes requests from gateways, hands each to an instance, and sees that it ends.

Who was away may have lost it: nothing is placed before the registry has confirmed it, and workers have said again what
they run.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack, suppress
from typing import assert_never

import structlog

from livescale.services.router.admission import Limits
from livescale.services.router.effects import AdmitTo, Effect, Finish, Learn, Lose, StopWork
from livescale.services.router.metrics import RouterMetrics
from livescale.services.router.policy import RouterPolicy
from livescale.services.router.settings import RouterSettings
from livescale.services.router.standby import Standby, first_in_line
from livescale.shared.bus.contract import BusError, Context, Endpoint, M, Refusal, Subscription, TooLarge
from livescale.shared.messages.live import RequestsMoved
from livescale.shared.messages.membership import LeaseChanged, QueueLoad, Report, WorkerReport
from livescale.shared.messages.registry import AskModels, Snapshot
from livescale.shared.messages.requests import (
    Admit,
    AskRunning,
    Cancel,
    RequestLost,
    RequestsEnded,
    Submit,
    Submitted,
    TokenFrame,
    Tokens,
    arrived,
    leaving,
)
from livescale.shared.process.membership import Membership
from livescale.shared.process.run import World
from livescale.shared.subjects import (
    ADMIT,
    CANCEL,
    CANCEL_WORK,
    ENDED,
    HEARTBEAT,
    MODELS,
    MOVED,
    RUNNING,
    SUBMIT,
    TOKENS,
)

TICK_SECONDS = 0.1
MODELS_SECONDS = 0.5
REPORT_SECONDS = 0.05  # how soon after another a report of a changed queue may follow
CALL_SECONDS = 2.0
ADMIT_SECONDS = 1.0  # saying it twice does no harm, and a worker that died says nothing
AWAY_SECONDS = 1.0  # less than a lease: who slept for longer may have lost its office
DOUBT_SECONDS = 0.5  # a request waits while the office is in doubt; less than its gateway waits for an answer
LEARN_SECONDS = 1.0  # nothing of a model is placed meanwhile

log = structlog.get_logger()


class Office:
    """One queue per model; the policy decides, this performs. `hold` it once; what it knows is its own."""

    def __init__(
        self, world: World, settings: RouterSettings, membership: Membership, standby: Standby, metrics: RouterMetrics
    ) -> None:
        self._bus, self._clock, self._info = world.bus, world.clock, world.info
        self.policy = RouterPolicy(
            Limits(settings.max_waiting, settings.max_waiting_tokens, settings.look_ahead), settings.retry_after_ms
        )
        self._membership = membership
        self._standby = standby
        self._metrics = metrics
        self._calls = asyncio.TaskGroup()
        self._queues_changed = asyncio.Event()
        self._depths: dict[str, int] = {}
        self._away = world.clock.away  # as far as it was noticed
        self._sure, self._over = asyncio.Event(), asyncio.Event()
        self._sure.set()

    async def hold(self, snapshot: Snapshot) -> None:
        """Until another router is in office."""
        async with AsyncExitStack() as undo, self._calls as group:
            workers = await self._listen(undo, self._bus.subscribe(HEARTBEAT, service="worker"))
            ended = await self._listen(undo, self._bus.subscribe(ENDED))
            moved = await self._listen(undo, self._bus.subscribe(MOVED))
            cancels = await self._listen(undo, self._bus.subscribe(CANCEL))
            self.policy.on_members(snapshot.members, self._clock.wall())
            for report in snapshot.workers:
                self._perform(self.policy.on_report(report, self._clock.wall()))
            undo.push_async_callback(await self._bus.serve(self._info, [Endpoint(SUBMIT, self._submit)]))
            loops = (
                group.create_task(self._hear_workers(workers), name="workers"),
                group.create_task(self._follow_ended(ended), name="ended"),
                group.create_task(self._follow_moved(moved), name="moved"),
                group.create_task(self._follow_cancels(cancels), name="cancels"),
                group.create_task(self._keep_time(), name="deadlines"),
                group.create_task(self._keep_models(), name="models"),
                group.create_task(self._report_changes(), name="reports"),
            )
            self._membership.changed()
            await self._over.wait()
            for loop in loops:
                loop.cancel()

    @staticmethod
    async def _listen(undo: AsyncExitStack, subscribing: Awaitable[Subscription[M]]) -> Subscription[M]:
        subscription = await subscribing
        undo.push_async_callback(subscription.close)
        return subscription

    def doubt(self, reason: str) -> None:
        """It may be another's: ask the registry before anything else is done."""
        if self._sure.is_set() and not self._over.is_set():
            log.warning("office_in_doubt", reason=reason)
            self._sure.clear()
            self._calls.create_task(self._confirm(), name="confirmation")

    def _is_sure(self) -> bool:
        self._notice_sleep()
        return self._sure.is_set()

    def _notice_sleep(self) -> None:
        """What is read after a sleep was told to a successor as well, if there is one."""
        slept, self._away = self._clock.away - self._away, self._clock.away
        if slept >= AWAY_SECONDS:
            self.policy.was_away(self._clock.wall())
            self.doubt(f"away for {slept:.1f} s")

    async def _confirm(self) -> None:
        """Nobody in office is no answer: this router has not joined again yet."""
        while True:
            own, snapshot = await self._standby.look()
            first = None if snapshot is None else first_in_line(snapshot.members)
            if first == own:
                break
            if first is not None:
                log.warning("router_steps_aside", successor=first[1])
                self._over.set()
                return
            await self._standby.pause()
        log.info("office_confirmed", epoch=own[0])
        self._sure.set()
        self._perform(self.policy.ask_again("this router was away"))
        self._dispatch()

    async def _submit(self, request: Submit, context: Context) -> Submitted:
        """Idempotent, as gateways submit again what they cannot be sure of; 409 says that it waits already."""
        await self._be_sure()
        request = arrived(request, self._clock.wall())
        worker = self.policy.runs_at(request.request_id)
        if worker is not None:
            return Submitted(ahead=0, worker=worker)
        if not self.policy.knows(request.model) and not await self._refresh_models():
            raise Refusal(503, "the registry has not said yet which models there are", retry_after_ms=1000)
        started, now = self._clock.now(), self._clock.wall()
        try:
            ahead = self.policy.submit(request, now)
        except Refusal as refusal:
            self._metrics.refused(refusal.code)
            raise
        self._dispatch()
        self._metrics.decided(self._clock.now() - started)
        return Submitted(ahead=ahead)

    async def _be_sure(self) -> None:
        """Raises Refusal."""
        if not self._is_sure():
            with suppress(TimeoutError):
                async with asyncio.timeout(DOUBT_SECONDS):
                    await self._sure.wait()
        if not self._sure.is_set():
            raise Refusal(503, "this router was away; another may be in office", retry_after_ms=500)

    def _dispatch(self) -> None:
        """After every event: whatever has room now is admitted."""
        if not self._is_sure():
            return
        self._perform(self.policy.dispatch(self._clock.wall()))
        depths = self.policy.depths()
        if depths != self._depths:
            self._depths = depths
            self._queues_changed.set()
            self._metrics.queues(depths)

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case AdmitTo():
                    self._calls.create_task(self._admit(effect), name=f"admit {effect.request.request_id}")
                case Finish():
                    self._finish(effect)
                case Lose():
                    self._lose(effect)
                case StopWork():
                    self._bus.publish(CANCEL_WORK, Cancel(request_id=effect.request_id), id=effect.worker)
                case Learn():
                    self._calls.create_task(self._learn(effect), name=f"learn {effect.worker}")
                case _:
                    assert_never(effect)

    def _finish(self, effect: Finish) -> None:
        log.info("request_ended_here", request=effect.request_id, reason=effect.finish_reason, error=effect.error)
        row = Tokens(
            request_id=effect.request_id,
            index=effect.index,
            token_ids=[],
            finish_reason=effect.finish_reason,
            error=effect.error,
            code=effect.code,
        )
        self._bus.publish(TOKENS, TokenFrame(worker=self._info.id, step=0, rows=[row]), gateway=effect.gateway)

    def _lose(self, effect: Lose) -> None:
        log.warning("request_lost", request=effect.request_id, reason=effect.reason)
        self._metrics.lost()
        lost = RequestLost(request_id=effect.request_id, reason=effect.reason)
        self._bus.publish(TOKENS, lost, gateway=effect.gateway)

    async def _admit(self, effect: AdmitTo) -> None:
        request_id, worker = effect.request.request_id, effect.worker
        context = Context(effect.request.deadline, effect.epoch, request_id)
        admit = Admit(request=leaving(effect.request, self._clock.wall()), attempt=effect.attempt)
        try:
            await self._bus.call(ADMIT, admit, timeout=ADMIT_SECONDS, context=context, id=worker)
        except BusError as error:
            code = _code_of(error)
            log.warning("admission_refused", request=request_id, worker=worker, code=code, error=str(error))
            self._perform(self.policy.refused(effect, code, _told(error)))
        else:
            self._metrics.admitted()
            self._perform(self.policy.admitted(worker, request_id))
        self._dispatch()

    async def _learn(self, effect: Learn) -> None:
        try:
            answer = await self._bus.call(RUNNING, AskRunning(), timeout=LEARN_SECONDS, id=effect.worker)
        except BusError as error:
            log.warning("worker_not_asked", worker=effect.worker, error=str(error))
            self.policy.learned(effect.worker, [], self._clock.wall())
        else:
            log.info("worker_asked", worker=effect.worker, reason=effect.reason, running=len(answer.requests))
            self.policy.learned(effect.worker, answer.requests, self._clock.wall())
        self._dispatch()

    async def _hear_workers(self, heartbeats: Subscription[Report]) -> None:
        async for received in heartbeats:
            if isinstance(received.message, WorkerReport):
                self._notice_sleep()
                self._perform(self.policy.on_report(received.message, self._clock.wall()))
                self._dispatch()

    def on_lease(self, change: LeaseChanged) -> None:
        self._perform(self.policy.on_lease(change))
        self._dispatch()

    async def _follow_ended(self, ended: Subscription[RequestsEnded]) -> None:
        async for received in ended:
            self.policy.on_ended(received.message)
            self._dispatch()

    async def _follow_moved(self, moved: Subscription[RequestsMoved]) -> None:
        async for received in moved:
            self._perform(self.policy.on_moved(received.message, self._clock.wall()))
            self._dispatch()

    async def _follow_cancels(self, cancels: Subscription[Cancel]) -> None:
        async for received in cancels:
            self._perform(self.policy.cancel(received.message.request_id))
            self._dispatch()

    async def _keep_time(self) -> None:
        while True:
            if self._is_sure():
                self._perform(self.policy.expire(self._clock.wall()))
                self._dispatch()
            await asyncio.sleep(TICK_SECONDS)

    async def _keep_models(self) -> None:
        while True:
            await self._refresh_models()
            await asyncio.sleep(MODELS_SECONDS)

    async def _refresh_models(self) -> bool:
        """Whether the registry answered."""
        try:
            answer = await self._bus.call(MODELS, AskModels(), timeout=CALL_SECONDS)
        except BusError as error:
            log.debug("models_unknown", error=str(error))
            return False
        self._perform(self.policy.on_models(answer.models))
        return True

    async def _report_changes(self) -> None:
        while True:
            await self._queues_changed.wait()
            self._queues_changed.clear()
            self._membership.changed()
            await asyncio.sleep(REPORT_SECONDS)

    def queues(self) -> list[QueueLoad]:
        return self.policy.loads(self._clock.wall())


def _code_of(error: BusError) -> int:
    """A worker that was not reached may be another time; a request that does not fit a message never will."""
    if isinstance(error, Refusal):
        return error.code
    return 413 if isinstance(error, TooLarge) else 503


def _told(error: BusError) -> str:
    """To a client, who knows of no subjects."""
    return error.message if isinstance(error, Refusal) else "the request is too large to be handed to a worker"
