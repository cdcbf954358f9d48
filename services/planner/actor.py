"""The planner: plans scales and carries each through. It never waits for a transfer before it plans again."""

import asyncio
from typing import assert_never

import structlog

from services.planner.book import Book
from services.planner.chains import CannotPlan, PlanIds, plan_chain
from services.planner.fleet import Fleet, choose_to_drain, count_fleet
from services.planner.metrics import PlannerMetrics
from services.planner.orders import Orders
from services.planner.picture import Picture
from services.planner.scale_in import ScaleIn
from services.planner.scale_out import ScaleOut
from services.planner.scales import Command
from services.planner.scales import Scale as RunningScale
from services.planner.settings import PlannerSettings
from shared.bus.contract import BusError, Context, Endpoint, Refusal, Subscription
from shared.membership import Membership
from shared.messages.membership import LeaseChanged, ModelEntry, Report, Snapshot, WorkerReport
from shared.messages.parameters import Manifest
from shared.messages.scaling import (
    Abort,
    AskScales,
    BlockReady,
    Decision,
    Drain,
    InstanceServing,
    Load,
    Scale,
    ScaleAccepted,
    ScaleRecords,
    Send,
    Serve,
    Transfer,
)
from shared.process import World
from shared.subjects import (
    ABORT,
    BLOCK,
    DRAIN,
    HEARTBEAT,
    INSTANCE,
    LEASE,
    LOAD,
    PLAN,
    SCALE,
    SCALES,
    SEND,
    SERVE,
    TRANSFER,
)
from shared.transfer.chunks import chunk_bytes_for

TICK_SECONDS = 0.5
COMMAND_SECONDS = 5.0

log = structlog.get_logger()


class Planner:
    """Pure scales in a book; this hears the world for them and sends what they command."""

    def __init__(self, world: World, settings: PlannerSettings) -> None:
        self._bus, self._clock, self._ids, self._info = world.bus, world.clock, world.ids, world.info
        self._settings = settings
        self._picture = Picture(world.bus)
        self._book = Book(first_ticket=int(world.clock.wall()))
        self._metrics = PlannerMetrics(world.telemetry)
        self._membership = Membership(world.bus, world.clock, "planner", world.info.id, world.host)
        self._calls = asyncio.TaskGroup()
        self._aborting: set[str] = set()
        self._replanning: set[str] = set()

    async def run(self) -> None:
        transfers = await self._bus.subscribe(TRANSFER)
        blocks = await self._bus.subscribe(BLOCK)
        instances = await self._bus.subscribe(INSTANCE)
        leases = await self._bus.subscribe(LEASE)
        workers = await self._bus.subscribe(HEARTBEAT, service="worker")
        await self._bus.serve(self._info, [Endpoint(SCALE, self._scale), Endpoint(SCALES, self._records)])
        async with self._calls as group:
            group.create_task(self._follow_transfers(transfers), name="transfers")
            group.create_task(self._follow_blocks(blocks), name="blocks")
            group.create_task(self._follow_instances(instances), name="instances")
            group.create_task(self._follow_leases(leases), name="leases")
            group.create_task(self._hear_workers(workers), name="workers")
            group.create_task(self._keep_time(), name="patience")
            group.create_task(self._membership.run(), name="membership")

    async def _records(self, ask: AskScales, context: Context) -> ScaleRecords:
        return ScaleRecords(records=self._book.records(ask.model, ask.limit))

    async def _scale(self, scale: Scale, context: Context) -> ScaleAccepted:
        asked_at = self._clock.wall()
        snapshot, entry, manifest = await self._picture.look(scale.model)
        _check_target(scale, entry)
        # From here on nothing is awaited: of two scales at the same time, the second sees what the first planned.
        fleet = count_fleet(scale.model, snapshot.workers, self._book.coming(scale.model), self._book.leaving())
        actual = len(fleet.present)
        if scale.instances == actual:
            return ScaleAccepted(scale_id=None, actual=actual, target=actual, reason=f"{actual} are there already")
        decision = scale.decision or self._by_operator(scale, actual, asked_at)
        running: RunningScale
        if scale.instances < actual:
            running = self._plan_in(decision, snapshot, fleet, actual - scale.instances)
            target = actual - len(running.instances)
        else:
            running = self._plan_out(decision, snapshot, entry, manifest, scale.instances - actual)
            target = actual + len(running.instances)
        self._metrics.accepted(scale.model, actual, target)
        self._book.add(running)
        self._after(running, running.start(self._clock.wall()))
        return ScaleAccepted(scale_id=running.id, actual=actual, target=target, reason=decision.reason)

    def _by_operator(self, scale: Scale, actual: int, at: float) -> Decision:
        return Decision(
            id=self._ids.new("decision"),
            model=scale.model,
            at=at,
            action="in" if scale.instances < actual else "out",
            current=actual,
            target=scale.instances,
            rule="operator",
            reason="asked for by hand",
            by="operator",
        )

    def _plan_in(self, decision: Decision, snapshot: Snapshot, fleet: Fleet, count: int) -> ScaleIn:
        drained = choose_to_drain(fleet, count)
        if not drained:
            raise Refusal(503, f"nothing of {decision.model!r} can be drained: its instances still load", 1000)
        return ScaleIn(self._ids.new("scale"), decision, drained, _epochs(snapshot))

    def _plan_out(
        self, decision: Decision, snapshot: Snapshot, entry: ModelEntry, manifest: Manifest, count: int
    ) -> ScaleOut:
        ids = PlanIds(self._ids.new("scale"), [self._ids.new("instance") for _ in range(count)])
        try:
            plan = plan_chain(snapshot, entry, manifest.version, ids, self._book.reserved(), self._book.flows())
        except CannotPlan as error:
            raise Refusal(503, f"cannot scale {decision.model!r} out: {error}", retry_after_ms=1000) from error
        orders = Orders(
            plan=plan,
            manifest=manifest,
            members={member.id: member for member in snapshot.members},
            ticket=self._book.fresh_ticket(),
            chunk_bytes=chunk_bytes_for(self._settings.link_rate),
            max_model_len=entry.max_model_len,
            secret=self._ids.secret(),
        )
        log.info("planned", scale=plan.id, model=plan.model, chains=len(plan.chains), reasons=plan.reasons)
        return ScaleOut(plan.id, decision, orders, self._settings.patience_seconds)

    def _after(self, scale: RunningScale, commands: list[Command]) -> None:
        """After every event: send what is commanded, tell what has changed."""
        for command in commands:
            self._calls.create_task(self._command(scale, command), name=f"{scale.id} {command.node}")
        if scale.take_change():
            record = scale.record()
            self._bus.publish(PLAN, record, id=scale.id)
            if scale.ended:
                log.info("scale_ended", scale=scale.id, model=scale.model, state=scale.state, outcome=record.outcome)
                self._metrics.ended(record)
        if isinstance(scale, ScaleOut) and scale.wants_plan(self._clock.wall()) and scale.id not in self._replanning:
            self._replanning.add(scale.id)
            self._calls.create_task(self._replan(scale), name=f"replan {scale.id}")

    async def _replan(self, scale: ScaleOut) -> None:
        """Somebody was lost: another way for those who received through him."""
        commands: list[Command] = []
        try:
            snapshot, _, _ = await self._picture.look(scale.model)
            commands = scale.replan(snapshot, self._book.flows(), self._book.fresh_ticket(), self._clock.wall())
        except (Refusal, CannotPlan) as error:
            log.warning("not_replanned", scale=scale.id, reason=str(error))
            scale.not_planned(str(error), self._clock.wall())
        else:
            log.info("replanned", scale=scale.id, to=[command.node for command in commands])
        finally:
            self._replanning.discard(scale.id)
        self._after(scale, commands)

    async def _command(self, scale: RunningScale, command: Command) -> None:
        try:
            await self._send(command)
        except BusError as error:
            reason = error.message if isinstance(error, Refusal) else str(error)
            log.warning("command_refused", scale=scale.id, node=command.node, error=reason)
            self._after(scale, scale.refused(command, reason, self._clock.wall()))
        else:
            self._after(scale, scale.acknowledged(command, self._clock.wall()))

    async def _send(self, command: Command) -> None:
        node, message = command.node, command.message
        match message:
            case Load():
                await self._bus.call(LOAD, message, timeout=COMMAND_SECONDS, context=_fence(message.epoch), id=node)
            case Send():
                await self._bus.call(SEND, message, timeout=COMMAND_SECONDS, context=_fence(message.epoch), id=node)
            case Serve():
                await self._bus.call(SERVE, message, timeout=COMMAND_SECONDS, context=_fence(message.epoch), id=node)
            case Drain():
                await self._bus.call(DRAIN, message, timeout=COMMAND_SECONDS, context=_fence(message.epoch), id=node)
            case Abort():
                await self._bus.call(ABORT, message, timeout=COMMAND_SECONDS, id=node)
            case _:
                assert_never(message)

    async def _follow_transfers(self, transfers: Subscription[Transfer]) -> None:
        async for received in transfers:
            scale = self._book.get(received.message.plan_id)
            if scale is not None:
                self._after(scale, scale.on_transfer(received.message, self._clock.wall()))

    async def _follow_blocks(self, blocks: Subscription[BlockReady]) -> None:
        async for received in blocks:
            scale = self._book.get(received.message.plan_id)
            if scale is not None:
                scale.on_progress(self._clock.wall())

    async def _follow_instances(self, instances: Subscription[InstanceServing]) -> None:
        async for received in instances:
            event = received.message
            for scale in self._book.concerned(event.instance):
                self._after(scale, scale.on_instance(event, self._clock.wall()))
                if event.what == "first_token":
                    self._metrics.first_token(event.at - scale.decision.at)

    async def _follow_leases(self, leases: Subscription[LeaseChanged]) -> None:
        async for received in leases:
            self._picture.on_lease(received.message)
            for scale in self._book.running():
                self._after(scale, scale.on_lease(received.message, self._clock.wall()))

    async def _hear_workers(self, heartbeats: Subscription[Report]) -> None:
        async for received in heartbeats:
            if isinstance(received.message, WorkerReport):
                self._picture.on_report(received.message)
                for scale in self._book.running():
                    self._after(scale, scale.on_report(received.message, self._clock.wall()))
                self._end_orphan(received.message)

    def _end_orphan(self, report: WorkerReport) -> None:
        """Nobody will ever tell a worker to serve whose plan has ended, or was an earlier planner's."""
        if report.state != "loading" or report.plan_id is None or report.id in self._aborting:
            return
        scale = self._book.get(report.plan_id)
        if scale is None or scale.ended:
            self._aborting.add(report.id)
            self._calls.create_task(self._abort(report.id, report.plan_id), name=f"orphan {report.id}")

    async def _abort(self, worker: str, plan_id: str) -> None:
        log.warning("orphan_aborted", worker=worker, plan=plan_id)
        try:
            abort = Abort(plan_id=plan_id, reason="the plan does not run any more")
            await self._bus.call(ABORT, abort, timeout=COMMAND_SECONDS, id=worker)
        except BusError as error:
            log.warning("abort_refused", worker=worker, plan=plan_id, error=str(error))
        finally:
            self._aborting.discard(worker)

    async def _keep_time(self) -> None:
        while True:
            for scale in self._book.running():
                self._after(scale, scale.tick(self._clock.wall()))
            await asyncio.sleep(TICK_SECONDS)


def _check_target(scale: Scale, entry: ModelEntry) -> None:
    spec = entry.spec
    if not spec.min_instances <= scale.instances <= spec.max_instances:
        raise Refusal(
            400,
            f"instances must be {spec.min_instances} to {spec.max_instances} for {spec.name!r}, not {scale.instances}; "
            "register the model again with other limits",
        )


def _fence(epoch: int) -> Context:
    return Context(epoch=epoch)


def _epochs(snapshot: Snapshot) -> dict[str, int]:
    return {member.id: member.epoch for member in snapshot.members}
