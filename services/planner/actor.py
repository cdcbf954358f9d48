"""The planner's process as an actor: it plans scales and carries each of them out.

It never waits for a transfer before it plans again. What happens is passed to the scales, and what they command is
sent.
"""

import asyncio
from collections.abc import Coroutine

import structlog

from livescale.services.planner.fleet import ModelView, check_target
from livescale.services.planner.metrics import PlannerMetrics
from livescale.services.planner.outbox import RecordOutbox, SavedRecords, is_final, send
from livescale.services.planner.roles import RoleOrders
from livescale.services.planner.running_scale import NodeCommand, RunningScale
from livescale.services.planner.scale_out import ScaleOut
from livescale.services.planner.scale_planner import ScalePlanner
from livescale.services.planner.spans import ScaleSpans
from livescale.services.planner.store import ScaleStore
from livescale.services.planner.view import ClusterView
from livescale.shared.bus.contract import BusError, Context, Endpoint, Received, Refusal, Subscription
from livescale.shared.messages.membership import LeaseChanged, Report, WorkerReport
from livescale.shared.messages.scaling import AskScales, Scale, ScaleAccepted, ScaleRecord, ScaleRecords
from livescale.shared.messages.transfers import Abort, BlockReady, InstanceServing, Transfer
from livescale.shared.process.run import World
from livescale.shared.subjects import BLOCK, HEARTBEAT, INSTANCE, LEASE, ROLE, SCALE, SCALES, TRANSFER

TICK_SECONDS = 0.5  # between two checks of what is overdue
TAKE_OVER_SECONDS = 1.0  # in which every worker reports twice
AGAIN_SECONDS = 0.25  # between two attempts to send a command

log = structlog.get_logger()


class Planner:
    """Hears the bus for the scales in its store, and sends what they command."""

    def __init__(self, world: World, planner: ScalePlanner, store: ScaleStore) -> None:
        self._bus, self._clock, self._info = world.bus, world.clock, world.info
        self._cluster = ClusterView(world.bus, world.clock)
        self._store = store
        self._scale_planner = planner
        self._metrics = PlannerMetrics(world.telemetry, self._cluster.reports)
        self._spans = ScaleSpans(world.telemetry.spans)
        self._membership = world.membership("planner")
        self._calls = asyncio.TaskGroup()
        self._away = world.clock.away
        self._aborting: set[str] = set()
        self._replanning: set[str] = set()
        self._saved = SavedRecords(world.bus.kv)
        self._records = RecordOutbox(world.bus, world.clock, self._saved)
        self._roles = RoleOrders(world, self._cluster, self._metrics, self._keep)
        self._inherited: dict[str, ScaleRecord] = {}  # an earlier planner's, to be taken over

    async def run(self) -> None:
        """Serve calls and follow events until cancelled."""
        records = await self._saved.load()
        self._store.remember(records)
        for record in records:
            self._scale_planner.out.learn(record)
        self._inherited = {record.id: record for record in records if record.state not in ("done", "failed")}
        transfers = await self._bus.subscribe(TRANSFER)
        blocks = await self._bus.subscribe(BLOCK)
        instances = await self._bus.subscribe(INSTANCE)
        leases = await self._bus.subscribe(LEASE)
        workers = await self._bus.subscribe(HEARTBEAT, service="worker")
        self._bus.watch_connection(self._connection_changed)
        calls = [Endpoint(SCALE, self._scale), Endpoint(SCALES, self._answer_records), Endpoint(ROLE, self._roles.set)]
        await self._bus.serve(self._info, calls)
        async with self._calls as group:
            group.create_task(self._follow_transfers(transfers), name="transfers")
            group.create_task(self._follow_blocks(blocks), name="blocks")
            group.create_task(self._follow_instances(instances), name="instances")
            group.create_task(self._follow_leases(leases), name="leases")
            group.create_task(workers.each(self._hear), name="workers")
            group.create_task(self._keep_time(), name="timeouts")
            group.create_task(self._saved.run(), name="saved")
            group.create_task(self._records.run(), name="records")
            group.create_task(self._take_over(), name="inheritance")
            group.create_task(self._membership.run(), name="membership")

    async def why_not_ready(self) -> str | None:
        """Why it does not serve its role just now; None where it does."""
        return await self._membership.why_not_ready()

    def _connection_changed(self, connected: bool) -> None:
        if connected:
            self._saved.save_again()

    async def _take_over(self) -> None:
        """Continue the scales of an earlier planner, once every worker has had the time to report twice."""
        await asyncio.sleep(TAKE_OVER_SECONDS)
        while self._inherited:
            for record in list(self._inherited.values()):
                try:
                    view = await self._cluster.look(record.decision.model)
                except Refusal as error:
                    log.warning("not_taken_over", scale=record.id, reason=error.message)
                    continue
                log.info("taken_over", scale=record.id, state=record.state)
                del self._inherited[record.id]
                scale, commands = self._scale_planner.take_over(record, view, self._clock.wall())
                self._store.add(scale)
                self._spans.begin(record)
                self._after(scale, commands)
            await asyncio.sleep(TICK_SECONDS)

    async def _answer_records(self, ask: AskScales, context: Context) -> ScaleRecords:
        return ScaleRecords(records=self._store.records(ask.model, ask.limit))

    async def _scale(self, asked: Scale, context: Context) -> ScaleAccepted:
        asked_at = self._clock.wall()
        if asked.instances == 0:
            await self._cluster.keep(asked.model)
        view = await self._cluster.look(asked.model)
        # From here on nothing is awaited: of two scales at the same time, the second sees what the first planned.
        fleet = self._scale_planner.count(asked.model, view)
        actual = len(fleet.present)
        check_target(asked, view, actual)
        recalled = self._recall(asked, view, asked.instances - actual, asked_at)
        if recalled:
            fleet = self._scale_planner.count(asked.model, view)
            actual = len(fleet.present)
            if asked.instances == actual:
                why = "instances that were draining serve again"
                return ScaleAccepted(scale_id=None, actual=actual, target=actual, reason=why, recalled=recalled)
        if asked.instances == actual and not self._scale_planner.has_to_switch(asked, view):
            return ScaleAccepted(
                scale_id=None, actual=actual, target=actual, reason=f"there are already {actual} instances"
            )
        if asked.instances != actual and asked.decision is not None and asked.decision.action == "switch":
            why = f"there are {actual} instances now, not {asked.instances}; roles are to be decided anew"
            return ScaleAccepted(scale_id=None, actual=actual, target=actual, reason=why)
        scale = self._scale_planner.scale(asked, view, fleet, asked_at)
        target = actual + len(scale.coming) - len(scale.leaving)
        self._metrics.accepted(asked.model, target)
        self._store.add(scale)
        self._spans.begin(scale.record())
        now = self._clock.wall()
        for other in self._store.recalling(scale.leaving):
            other.yield_recalled(scale.leaving, now)
            self._after(other, [])
        commands = scale.start(now)
        log.info("planned", scale=scale.id, model=scale.model, actual=actual, target=target)
        self._after(scale, commands)
        return ScaleAccepted(
            scale_id=scale.id, actual=actual, target=target, reason=scale.decision.reason, recalled=recalled
        )

    def _keep(self, scale: RunningScale) -> None:
        """Keep and tell a scale that has ended already."""
        self._store.add(scale)
        self._spans.begin(scale.record())
        self._after(scale, [])

    def _recall(self, asked: Scale, view: ModelView, missing: int, now: float) -> int:
        """Have instances that drain serve again, where the model lacks some. Returns how many are to."""
        reason = "an operator asked for it" if asked.decision is None else asked.decision.reason
        chosen = self._scale_planner.choose_to_recall(asked, view, missing)
        for scale, workers in chosen:
            if workers:
                self._after(scale, scale.recall(workers, reason, now))
        return sum(len(workers) for _, workers in chosen)

    def _after(self, scale: RunningScale, commands: list[NodeCommand]) -> None:
        """Do what follows from every event: send the commands, publish and save the record, replan."""
        for command in [*commands, *scale.follow_up(self._clock.wall())]:
            self._start(self._command(scale, command), f"{scale.id} {command.node}")
        if scale.take_change():
            is_over = scale.take_end()
            self._records.put(scale, at_once=is_over)
            if is_over:
                record = scale.record()
                log.info("scale_ended", scale=scale.id, model=scale.model, state=scale.state, outcome=record.outcome)
                self._metrics.ended(record)
                self._spans.end(record)
                self._scale_planner.out.learn(record)
        if isinstance(scale, ScaleOut) and scale.wants_plan(self._clock.wall()) and scale.id not in self._replanning:
            self._replanning.add(scale.id)
            self._start(self._replan(scale), f"replan {scale.id}")

    def _start(self, work: Coroutine[None, None, None], name: str) -> None:
        """Run this beside the rest. Raises Refusal if the process ends: calls are still answered until the bus is
        closed."""
        try:
            self._calls.create_task(work, name=name)
        except RuntimeError as error:
            work.close()
            raise Refusal(503, "the planner is ending", retry_after_ms=1000) from error

    async def _replan(self, scale: ScaleOut) -> None:
        """Look for another way for the targets that received through a node that was lost."""
        commands: list[NodeCommand] = []
        try:
            view = await self._cluster.look(scale.model)
            commands = self._scale_planner.replan(scale, view, self._clock.wall())
        except Refusal as error:
            log.warning("not_replanned", scale=scale.id, reason=error.message)
            scale.delivery.stranded.looked(self._clock.wall(), error.message)
        else:
            log.info("replanned", scale=scale.id, to=[command.node for command in commands])
        finally:
            self._replanning.discard(scale.id)
        self._after(scale, commands)

    async def _command(self, scale: RunningScale, command: NodeCommand) -> None:
        """Send a command, and repeat it while the scale wants it and no answer comes.

        A node that lives is not given up for a late answer. If it has done what it was told, it says so when it is told
        again; if it is dead, its lease says so. The scale has a deadline of its own.
        """
        while True:
            try:
                await send(self._bus, command, self._spans.traceparent(scale.id))
            except BusError as error:
                reason = error.message if isinstance(error, Refusal) else str(error)
                if is_final(error) or not scale.wants(command):
                    log.warning("command_refused", scale=scale.id, node=command.node, error=reason)
                    self._after(scale, scale.refused(command, reason, self._clock.wall()))
                    return
                log.warning("command_not_answered", scale=scale.id, node=command.node, error=reason)
            else:
                self._after(scale, scale.acknowledged(command, self._clock.wall()))
                return
            await asyncio.sleep(AGAIN_SECONDS)
            if not scale.wants(command):
                return

    async def _follow_transfers(self, transfers: Subscription[Transfer]) -> None:
        async for received in transfers:
            scale = self._store.get(received.message.plan_id)
            if scale is not None:
                self._after(scale, scale.on_transfer(received.message, self._clock.wall()))

    async def _follow_blocks(self, blocks: Subscription[BlockReady]) -> None:
        async for received in blocks:
            scale = self._store.get(received.message.plan_id)
            if scale is not None:
                self._after(scale, scale.on_block(received.message, self._clock.wall()))

    async def _follow_instances(self, instances: Subscription[InstanceServing]) -> None:
        async for received in instances:
            event = received.message
            self._cluster.on_instance(event)
            for scale in self._store.concerned(event.instance):
                self._after(scale, scale.on_instance(event, self._clock.wall()))
                if event.what == "first_token":
                    self._metrics.first_token(event.at - event.unasked_seconds - scale.decision.at)

    async def _follow_leases(self, leases: Subscription[LeaseChanged]) -> None:
        async for received in leases:
            self._cluster.on_lease(received.message)
            for scale in self._store.running():
                self._after(scale, scale.on_lease(received.message, self._clock.wall()))

    def _hear(self, received: Received[Report]) -> None:
        if isinstance(received.message, WorkerReport) and self._cluster.on_report(received.message):
            for scale in self._store.running():
                self._after(scale, scale.on_report(received.message, self._clock.wall()))
            self._end_orphan(received.message)

    def _end_orphan(self, report: WorkerReport) -> None:
        """Abort what a worker loads for a plan that has ended or is not known, as it will never be told to serve."""
        if report.state not in ("loading", "live") or report.plan_id is None or report.id in self._aborting:
            return
        if report.plan_id in self._inherited:  # it is about to be taken over
            return
        scale = self._store.get(report.plan_id)
        if scale is None or scale.ended:
            self._aborting.add(report.id)
            self._calls.create_task(self._abort(report.id, report.plan_id), name=f"orphan {report.id}")

    async def _abort(self, worker: str, plan_id: str) -> None:
        log.warning("orphan_aborted", worker=worker, plan=plan_id)
        try:
            abort = Abort(plan_id=plan_id, reason="the plan does not run any more")
            await send(self._bus, NodeCommand(worker, abort, abort.reason))
        except BusError as error:
            log.warning("abort_refused", worker=worker, plan=plan_id, error=str(error))
        finally:
            self._aborting.discard(worker)

    async def _keep_time(self) -> None:
        while True:
            slept, self._away = self._clock.away - self._away, self._clock.away
            for scale in self._store.running():
                scale.excuse(slept)
                self._after(scale, scale.tick(self._clock.wall()))
            await asyncio.sleep(TICK_SECONDS)
