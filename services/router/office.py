"""The router in office: it takes requests from gateways, hands each to an instance, and sees that each ends.

A router that was away may have lost the office. It places nothing before the registry has confirmed that it is still in
office, and before the workers have said again what they run.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from typing import assert_never

import structlog

from livescale.services.router.calls import assign, code_of, hand_over, told
from livescale.services.router.effects import (
    AdmitTo,
    AssignRole,
    Effect,
    FinishRequest,
    Learn,
    Lose,
    MoveRequest,
    StopWork,
)
from livescale.services.router.metrics import RouterMetrics, RouterSpans
from livescale.services.router.policy import RouterPolicy
from livescale.services.router.settings import RouterSettings
from livescale.services.router.standby import Standby, Tenure
from livescale.shared.bus.contract import BusError, Context, Endpoint, M, Received, Refusal, Subscription
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
REPORT_SECONDS = 0.05  # the shortest time between two reports of changed queues
CALL_SECONDS = 2.0
ADMIT_SECONDS = 1.0  # short, as a dead worker never answers, and admitting a request twice does no harm
LEARN_SECONDS = 1.0  # short, as no request of the model is placed meanwhile

log = structlog.get_logger()


class Office:
    """One term in office, held once. The policy decides and this performs its effects. The next term has its own."""

    def __init__(
        self, world: World, settings: RouterSettings, membership: Membership, standby: Standby, metrics: RouterMetrics
    ) -> None:
        self._bus, self._clock, self._info = world.bus, world.clock, world.info
        self.policy = RouterPolicy(settings.limits, settings.retry_after_ms)
        self._membership = membership
        self._metrics = metrics
        self._spans = RouterSpans(world.telemetry.spans)
        self._calls = asyncio.TaskGroup()
        self._queues_changed = asyncio.Event()
        self._depths: dict[str, int] = {}
        self.tenure = Tenure(world.clock, standby, self._calls, self._on_away, self._on_confirmed)

    async def hold(self, snapshot: Snapshot) -> None:
        """Serve until another router is in office. `snapshot` is what the registry knew when this term began."""
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
                group.create_task(workers.each(self._hear), name="workers"),
                group.create_task(ended.each(self._hear_ended), name="ended"),
                group.create_task(moved.each(self._hear_moved), name="moved"),
                group.create_task(cancels.each(self._hear_cancel), name="cancels"),
                group.create_task(self._keep_time(), name="deadlines"),
                group.create_task(self._keep_models(), name="models"),
                group.create_task(self._report_changes(), name="reports"),
            )
            self._membership.changed()
            try:
                await self.tenure.over.wait()
            finally:
                self.tenure.end()
            for loop in loops:
                loop.cancel()

    @staticmethod
    async def _listen(undo: AsyncExitStack, subscribing: Awaitable[Subscription[M]]) -> Subscription[M]:
        subscription = await subscribing
        undo.push_async_callback(subscription.close)
        return subscription

    def _on_away(self) -> None:
        self.policy.was_away(self._clock.wall())

    def _on_confirmed(self) -> None:
        self._perform(self.policy.ask_again("this router was away"))
        self._dispatch()

    async def _submit(self, request: Submit, context: Context) -> Submitted:
        """Queue a gateway's request. Idempotent, as gateways submit again where they had no answer; Refusal 409 says
        that the request already waits here."""
        await self.tenure.be_sure()
        request = arrived(request, self._clock.wall())
        worker = self.policy.runs_at(request.request_id)
        if worker is not None:
            return Submitted(ahead=0, worker=worker)
        if not self.policy.knows(request.model) and not await self._refresh_models():
            raise Refusal(
                503, "the registry has not yet said which models there are; try again in a moment", retry_after_ms=1000
            )
        started, now = self._clock.now(), self._clock.wall()
        try:
            ahead = self.policy.submit(request, now)
        except Refusal as refusal:
            self._metrics.refused(refusal.code)
            raise
        self._dispatch()
        seconds = self._clock.now() - started
        await asyncio.sleep(0)  # the worker is sent the request before anything else, as its tokens are waited for
        self._metrics.decided(seconds)
        return Submitted(ahead=ahead)

    def _dispatch(self) -> None:
        """Admit whatever has room now; called after every event."""
        if not self.tenure.is_sure() or self.policy.is_settled:
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
                case FinishRequest():
                    self._finish(effect)
                case Lose():
                    self._lose(effect)
                case StopWork():
                    self._bus.publish(CANCEL_WORK, Cancel(request_id=effect.request_id), id=effect.worker)
                case AssignRole():
                    self._calls.create_task(assign(self._bus, effect), name=f"role {effect.worker}")
                case MoveRequest():
                    self._calls.create_task(self._move(effect), name=f"move {effect.request_id}")
                case Learn():
                    self._calls.create_task(self._learn(effect), name=f"learn {effect.worker}")
                case _:
                    assert_never(effect)

    def _finish(self, effect: FinishRequest) -> None:
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
        self._spans.finished(effect, self._clock.wall())

    def _lose(self, effect: Lose) -> None:
        log.warning("request_lost", request=effect.request_id, reason=effect.reason)
        self._metrics.lost()
        lost = RequestLost(request_id=effect.request_id, reason=effect.reason)
        self._bus.publish(TOKENS, lost, gateway=effect.gateway)

    async def _admit(self, effect: AdmitTo) -> None:
        request_id, worker, asked = effect.request.request_id, effect.worker, self._clock.wall()
        context = Context(effect.request.deadline, effect.epoch, request_id, effect.request.traceparent)
        request = leaving(effect.request, self._clock.wall())
        admit = Admit(request=request, attempt=effect.attempt, decode=effect.decode)
        try:
            await self._bus.call(ADMIT, admit, timeout=ADMIT_SECONDS, context=context, id=worker)
        except BusError as error:
            code = code_of(error)
            log.warning("admission_refused", request=request_id, worker=worker, code=code, error=str(error))
            self._spans.answered(effect, asked, self._clock.wall(), code)
            self._perform(self.policy.refused(effect, code, told(error)))
        else:
            self._metrics.admitted(effect.request.model, effect.decode is not None)
            self._spans.answered(effect, asked, self._clock.wall())
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
            self.policy.learned(effect.worker, answer.requests, self._clock.wall(), ended=answer.ended)
        self._dispatch()

    async def _move(self, effect: MoveRequest) -> None:
        code = await hand_over(self._bus, effect)
        self._metrics.moved(taken=code is None)
        self.policy.moved(effect, code, self._clock.wall())
        self._dispatch()

    def _hear(self, received: Received[Report]) -> None:
        if isinstance(received.message, WorkerReport):
            self.tenure.notice_sleep()
            if effects := self.policy.on_report(received.message, self._clock.wall()):
                self._perform(effects)
            self._dispatch()

    def on_lease(self, change: LeaseChanged) -> None:
        """Take over the registry's judgement of a process."""
        self._perform(self.policy.on_lease(change))
        self._dispatch()

    def _hear_ended(self, received: Received[RequestsEnded]) -> None:
        self.policy.on_ended(received.message)
        self._dispatch()

    def _hear_moved(self, received: Received[RequestsMoved]) -> None:
        self._perform(self.policy.on_moved(received.message, self._clock.wall()))
        self._dispatch()

    def _hear_cancel(self, received: Received[Cancel]) -> None:
        self._perform(self.policy.cancel(received.message.request_id))
        self._dispatch()

    async def _keep_time(self) -> None:
        while True:
            if self.tenure.is_sure():
                self._perform(self.policy.expire(self._clock.wall()))
                self._dispatch()
            await asyncio.sleep(TICK_SECONDS)

    async def _keep_models(self) -> None:
        while True:
            await self._refresh_models()
            await asyncio.sleep(MODELS_SECONDS)

    async def _refresh_models(self) -> bool:
        """Ask the registry for the list of models. Returns whether it answered."""
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
        """The load of each model's queue, for the router's reports."""
        loads = self.policy.loads(self._clock.wall())
        self._metrics.chosen(loads)
        return loads
