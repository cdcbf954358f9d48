"""A worker that speaks the contract: blocks arrive and tokens are made in virtual time, nothing is computed."""

import asyncio
from dataclasses import dataclass

from msgspec.structs import replace

from livescale.services.worker.instance.lifecycle import Lifecycle
from livescale.shared.bus.contract import Ack, Bus, Context, Endpoint, Refusal, ServiceInfo
from livescale.shared.messages.disaggregation import ChangeRole
from livescale.shared.messages.membership import Holding, PeerTraffic, WorkerReport, WorkerState
from livescale.shared.messages.transfers import Abort, BlockReady, Drain, Inflow, InstanceServing, Load, Serve, Transfer
from livescale.shared.process.membership import Membership
from livescale.shared.subjects import (
    ABORT,
    ADMIT,
    BLOCK,
    CANCEL_WORK,
    CHANGE_ROLE,
    DRAIN,
    HELP,
    INSTANCE,
    LOAD,
    PIPELINE,
    PIPELINE_OVER,
    REPLAY,
    RUNNING,
    SEND,
    SERVE,
    TRANSFER,
)
from tests.control.fake_engine import FakeEngine
from tests.control.fake_pipeline import FakePipeline
from tests.control.fakes import BLOCK_BYTES, BLOCKS, CLOCK, PATIENCE_SECONDS, RATE, Node, start


@dataclass
class Faults:
    """What goes wrong at a worker."""

    refuse_loads: bool = False
    refuse_admissions: int = 0
    break_after_blocks: int | None = None
    stall_after_blocks: int | None = None
    strand_after_blocks: int | None = None  # once
    block_seconds: float = BLOCK_BYTES / RATE
    refuse_pipelines: bool = False


class FakeWorker(Node):
    """A worker whose blocks take virtual time to come; what it computes is made up by `FakeEngine`."""

    def __init__(self, bus: Bus, id: str, host: str, fabric: dict[str, Node], faults: Faults | None = None) -> None:
        super().__init__(bus, fabric)
        self.id = id
        self.faults = faults or Faults()
        self.lifecycle = Lifecycle()
        self.order: Load | None = None
        self.received: list[int] = []  # blocks, as often as they came
        self.lanes: dict[tuple[str, int], set[int]] = {}  # of a plan's block that came
        self.traffic: list[PeerTraffic] | None = []  # what serving moves
        self.engine = FakeEngine(self)
        self.stages = FakePipeline(self)
        self.membership = Membership(
            bus, CLOCK, "worker", id, host, address=id.encode(), report=self.report, on_stale=self.give_up
        )
        fabric[id] = self

    async def run(self) -> None:
        self.enter()
        holes = {"id": self.id}
        endpoints = [
            Endpoint(LOAD, self.load, holes),
            Endpoint(SEND, self.send, holes),
            Endpoint(SERVE, self.serve, holes),
            Endpoint(DRAIN, self.drain, holes),
            Endpoint(ADMIT, self.engine.admit, holes),
            Endpoint(CHANGE_ROLE, self.change_role, holes),
            Endpoint(RUNNING, self.engine.tell_running, holes),
            Endpoint(REPLAY, self.engine.replay, holes),
            Endpoint(ABORT, self.abort, holes),
            Endpoint(HELP, self.engine.help, holes),
            Endpoint(PIPELINE, self.stages.form, holes),
        ]
        cancels = await self.bus.subscribe(CANCEL_WORK, id=self.id)
        overs = await self.bus.subscribe(PIPELINE_OVER, id=self.id)
        await self.bus.serve(ServiceInfo("worker", self.id, "a fake worker"), endpoints)

        async def hear_cancels() -> None:
            async for received in cancels:
                self.engine.cancel(received.message)

        async def hear_overs() -> None:
            async for received in overs:
                self.stages.over(received.message)

        async with self.tasks as group:
            group.create_task(self.membership.run())
            group.create_task(hear_overs())
            group.create_task(self.engine.compute())
            group.create_task(self.engine.pull())
            group.create_task(hear_cancels())

    @property
    def state(self) -> WorkerState:
        return self.lifecycle.state.value

    async def change_role(self, command: ChangeRole, context: Context) -> Ack:
        assert command.epoch == self.membership.epoch
        assert self.order is not None
        assert self.order.instance == command.instance
        self.order = replace(self.order, role=command.role)
        self.membership.changed()
        return Ack()

    def report(self, epoch: int) -> WorkerReport:
        load = self.order
        if load is None:
            return WorkerReport(id=self.id, epoch=epoch, state=self.state, arena_bytes=2 * BLOCKS * BLOCK_BYTES)
        ready = sorted(self.lifecycle.ready)
        holding = Holding(model=load.model, version=load.manifest.version, ready=ready, total=BLOCKS)
        return WorkerReport(
            id=self.id,
            epoch=epoch,
            state=self.state,
            model=load.model,
            version=load.manifest.version,
            instance=load.instance,
            plan_id=load.plan_id,
            role=load.role,
            rank=load.rank,
            holding=holding,
            arena_bytes=2 * BLOCKS * BLOCK_BYTES,
            load=self.engine.engine_load(),
            traffic=self.traffic,
            helping=sorted(self.engine.helped),
            live_layers=len(ready) - 1 if self.state == "live" and {0, 1} <= self.lifecycle.ready else 0,
            kv_blocks=64,
            pipeline=self.stages.id,
            stage=self.stages.span,
        )

    def give_up(self) -> None:
        """Give everything up, as the worker was declared dead."""
        self.lifecycle = Lifecycle()
        self.forget()

    def release(self) -> None:
        self.lifecycle.release()
        self.engine.give_back(f"{self.id} gave up loading")
        self.forget()

    def forget(self) -> None:
        self.order = None
        self.engine.forget()
        self.stages.forget()
        self.membership.changed()

    async def load(self, load: Load, context: Context) -> Ack:
        if self.faults.refuse_loads:
            raise Refusal(503, "the arena is broken")
        self.check_epoch(load.epoch)
        if self.order is not None and self.lifecycle.goes_on(load):
            self.order = load  # flows that it does not name end
            return Ack()
        self.lifecycle.load(load)
        self.order = load
        self.membership.changed()
        return Ack()

    def check_epoch(self, epoch: int) -> None:
        if epoch != self.membership.epoch:
            raise Refusal(409, f"epoch {epoch} is stale, this worker is at {self.membership.epoch}")

    def has(self, version: str, index: int) -> bool:
        order = self.order
        return order is not None and order.manifest.version == version and index in self.lifecycle.ready

    def begin(self, ticket: int) -> None:
        """Receive bytes along a flow, unless the process is ending."""
        start(self, self.receive(ticket))

    def inflow(self, ticket: int) -> Inflow | None:
        """The flow as it was last commanded; None where it ended."""
        if self.order is None or self.state not in ("loading", "live"):
            return None
        return next((flow for flow in self.order.inflows if flow.ticket == ticket), None)

    async def receive(self, ticket: int) -> None:
        await asyncio.sleep(0.001)
        flow, load = self.inflow(ticket), self.order
        if flow is None or load is None:
            return
        self.transfer("started")
        upstream = self.fabric.get(flow.upstream.id)
        for index in flow.blocks or range(BLOCKS):
            if index in self.lifecycle.ready:
                continue
            if index == self.faults.break_after_blocks:
                self.transfer("failed", error="the peer is gone")
                self.release()
                return
            if index == self.faults.stall_after_blocks:
                return
            if not await self.come(load, flow, index, upstream):
                return
        if self.lifecycle.whole:
            self.transfer("whole")
            self.membership.changed()

    async def come(self, load: Load, flow: Inflow, index: int, upstream: Node | None) -> bool:
        """One block, once upstream has it. False where the flow ended."""
        version, waited = load.manifest.version, 0.0
        while True:
            stranded = index == self.faults.strand_after_blocks
            gone = upstream is None or self.fabric.get(flow.upstream.id) is not upstream
            if stranded or gone or waited > PATIENCE_SECONDS:
                self.faults.strand_after_blocks = None if stranded else self.faults.strand_after_blocks
                self.transfer("broken", ticket=flow.ticket, error="the peer is gone")
                return False
            await asyncio.sleep(self.faults.block_seconds / flow.lanes)
            if self.inflow(flow.ticket) is None:
                return False
            assert upstream is not None
            if upstream.has(version, index) and not upstream.is_stopped:
                break
            waited += self.faults.block_seconds
        lanes = self.lanes.setdefault((load.plan_id, index), set())
        lanes.add(flow.lane)
        if len(lanes) == flow.lanes:
            self.lifecycle.block_ready(load.plan_id, index)
            self.received.append(index)
            self.block_ready(load, index)
            if load.live not in ("off", "pipeline") and self.lifecycle.may_go_live(self.lifecycle.ready):
                self.lifecycle.go_live()
                self.membership.changed()
        return True

    def transfer(self, state: str, ticket: int = 0, error: str | None = None) -> None:
        assert self.order is not None
        plan, wall = self.order.plan_id, CLOCK.wall()
        event = Transfer(plan_id=plan, node=self.id, state=state, at=wall, ticket=ticket, error=error)  # type: ignore[arg-type]
        self.bus.publish(TRANSFER, event, plan=plan)

    def block_ready(self, load: Load, index: int) -> None:
        event = BlockReady(
            worker=self.id,
            model=load.model,
            instance=load.instance,
            plan_id=load.plan_id,
            index=index,
            ready=index + 1,
            total=BLOCKS,
            at=CLOCK.wall(),
        )
        self.bus.publish(BLOCK, event, worker=self.id)

    def tell(self, what: str) -> None:
        load = self.order
        assert load is not None
        event = InstanceServing(
            instance=load.instance,
            model=load.model,
            worker=self.id,
            plan_id=load.plan_id,
            what=what,  # type: ignore[arg-type]
            at=CLOCK.wall(),
        )
        self.bus.publish(INSTANCE, event, instance=load.instance)

    async def serve(self, serve: Serve, context: Context) -> Ack:
        self.check_epoch(serve.epoch)
        served = self.state == "serving"
        self.lifecycle.serve(serve)
        if served:
            return Ack()
        self.stages.serve()
        self.tell("serving")
        self.membership.changed()
        return Ack()

    async def drain(self, drain: Drain, context: Context) -> Ack:
        self.check_epoch(drain.epoch)
        self.lifecycle.drain(drain)
        self.engine.helped.clear()
        self.membership.changed()
        self.finish_draining()
        return Ack()

    def finish_draining(self) -> None:
        if self.state == "draining" and not self.engine.running:
            self.tell("spare")
            self.release()

    async def abort(self, abort: Abort, context: Context) -> Ack:
        self.aborts.append(abort)
        if self.lifecycle.aborts(abort.plan_id):
            self.release()
        return Ack()
