"""A worker's shell: it joins, obeys the planner and the router, and reports."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from msgspec import structs

from livescale.services.worker.deployment import Deployment
from livescale.services.worker.engine.contract import Runner
from livescale.services.worker.metrics import WorkerMetrics
from livescale.services.worker.resources import AnyArena, Resources
from livescale.services.worker.serving import Serving
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.bus.contract import Context, Endpoint, Refusal
from livescale.shared.links.contract import Link
from livescale.shared.links.meter import Meter
from livescale.shared.memory.arena import Arena
from livescale.shared.memory.devices import CPU
from livescale.shared.messages.membership import Holding, PeerTraffic, WorkerReport
from livescale.shared.messages.message import Ack
from livescale.shared.messages.requests import Admit, AskRunning, Replay, RunningRequests, arrived
from livescale.shared.process.membership import Membership
from livescale.shared.process.run import World
from livescale.shared.subjects import (
    ABORT,
    ADMIT,
    CANCEL_WORK,
    DRAIN,
    GIVE_KV,
    HELP,
    LEASE,
    LOAD,
    MEETING,
    MOVE_KV,
    PIPELINE,
    PIPELINE_OVER,
    PULL,
    RANK_STEP,
    RANK_TAKE,
    REPLAY,
    RUNNING,
    SEND,
    SERVE,
    STAGE_BATCH,
    STAGE_DONE,
    TOOK,
    WITHDRAW,
)
from livescale.shared.transfer.flow_end import together
from livescale.shared.transfer.memory_export import OpenMemoryExport

LOAD_REPORT_SECONDS = 0.1  # how often a changed load is worth a heartbeat of its own


class Worker:
    """Model-agnostic and warm: arena and KV memory are touched before it joins, so that a scale costs only bytes."""

    def __init__(
        self,
        world: World,
        settings: WorkerSettings,
        make_runner: Callable[[], Runner],
        open_link: Callable[[], Awaitable[Link]],
        open_door: OpenMemoryExport = lambda address: None,
        device: str = CPU,
    ) -> None:
        self._world = world
        self._device = device
        self._id = world.info.id
        self._settings = settings
        self._make_runner = make_runner
        self._open_link = open_link
        self._open_door = open_door
        self._reported_at = 0.0
        self._meter = Meter(world.clock.now)

    async def run(self) -> None:
        world, runner = self._world, self._make_runner()
        self._serving = Serving(self._id, world.bus, world.clock, runner, WorkerMetrics(world.telemetry, self._id))
        self._serving.on_step = self._load_changed
        arena, _ = await asyncio.gather(asyncio.to_thread(self._make_arena), runner.ready())
        link = await self._open_link()
        door = self._open_door(link.address)
        try:
            with ThreadPoolExecutor(1, "checksum") as hashing:
                await self._work(Resources(arena, link, self._meter, runner, hashing, door))
        finally:
            if door is not None:
                await door.close()
            await link.close()
            await runner.close()

    def _make_arena(self) -> AnyArena:
        size_bytes = self._settings.arena_bytes
        if self._device == CPU:
            return Arena(size_bytes)
        from livescale.shared.memory.device_arena import (
            DeviceArena,  # of torch, which whoever computes on no GPU may not need
        )

        return DeviceArena(size_bytes, self._device)

    async def _work(self, resources: Resources) -> None:
        world, kernels = self._world, await resources.runner.kernels_name()
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            self._membership = Membership(
                world.bus,
                world.clock,
                "worker",
                self._id,
                world.host,
                address=resources.link.address,
                report=self._report,
                on_stale=self._fence,
                place=self._settings.place,
                kernels=kernels,
            )
            self._deployment = Deployment(world, self._settings, resources, self._serving, tasks, self._membership)
            await self._serve_endpoints()
            tasks.create_task(self._membership.run(), name="membership")
            tasks.create_task(self._serving.run(), name="steps")
            tasks.create_task(self._obey_cancels(), name="cancels")
            tasks.create_task(self._deployment.duties.live.source.run(), name="pulls")
            tasks.create_task(self._hear_withdrawals(), name="withdrawals")
            tasks.create_task(self._hear_stages(), name="stages")
            tasks.create_task(self._hear_steps(), name="rank steps")
            tasks.create_task(self._follow_leases(), name="leases")

    async def _serve_endpoints(self) -> None:
        deployment, me = self._deployment, {"id": self._id}
        endpoints = [
            Endpoint(LOAD, deployment.load, me),
            Endpoint(SEND, deployment.send, me),
            Endpoint(SERVE, deployment.serve, me),
            Endpoint(DRAIN, deployment.drain, me),
            Endpoint(ABORT, deployment.abort, me),
            Endpoint(ADMIT, self._admit, me),
            Endpoint(RUNNING, self._running, me),
            Endpoint(REPLAY, self._replay, me),
            Endpoint(HELP, deployment.help, me),
            Endpoint(PIPELINE, deployment.pipeline, me),
            Endpoint(MOVE_KV, deployment.duties.move_kv, me),
            Endpoint(GIVE_KV, deployment.duties.give_kv, me),
            Endpoint(MEETING, deployment.ranks.where, me),
            Endpoint(RANK_TAKE, deployment.ranks.take, me),
            Endpoint(PULL, deployment.duties.pull, me),
            Endpoint(TOOK, deployment.duties.took, me),
        ]
        await self._world.bus.serve(self._world.info, endpoints)

    def _fence(self) -> None:
        self._deployment.give_up()

    async def _admit(self, command: Admit, context: Context) -> Ack:
        request, lifecycle = arrived(command.request, self._world.clock.wall()), self._deployment.lifecycle
        if not lifecycle.accepts_requests(request.model):
            raise Refusal(409, f"this worker takes no requests for {request.model}: it is {lifecycle.state}")
        self._serving.admit(request)
        self._load_changed()
        return Ack()

    async def _running(self, ask: AskRunning, context: Context) -> RunningRequests:
        return RunningRequests(requests=self._serving.running())

    async def _replay(self, command: Replay, context: Context) -> Ack:
        self._serving.replay(command)
        return Ack()

    async def _obey_cancels(self) -> None:
        async for received in await self._world.bus.subscribe(CANCEL_WORK, id=self._id):
            self._serving.cancel(received.message.request_id)

    async def _hear_withdrawals(self) -> None:
        async for received in await self._world.bus.subscribe(WITHDRAW, id=self._id):
            self._deployment.duties.live.withdraw(received.message.worker)

    async def _hear_steps(self) -> None:
        async for received in await self._world.bus.subscribe(RANK_STEP, id=self._id):
            self._deployment.ranks.hear(received.message)

    async def _hear_stages(self) -> None:
        pipelines, bus = self._deployment.duties.pipelines, self._world.bus

        async def batches() -> None:
            async for received in await bus.subscribe(STAGE_BATCH, id=self._id):
                pipelines.batch(received.message)

        async def done() -> None:
            async for received in await bus.subscribe(STAGE_DONE, id=self._id):
                pipelines.done(received.message)

        async def over() -> None:
            async for received in await bus.subscribe(PIPELINE_OVER, id=self._id):
                pipelines.over(received.message)

        await together(batches(), done(), over())

    async def _follow_leases(self) -> None:
        async for received in await self._world.bus.subscribe(LEASE):
            change = received.message
            if change.service == "worker" and change.state == "dead":
                self._deployment.duties.lost(change.id)
                self._deployment.ranks.lost(change.id)

    def _load_changed(self) -> None:
        now = self._world.clock.now()
        if now - self._reported_at >= LOAD_REPORT_SECONDS:
            self._reported_at = now
            self._membership.changed()

    def _traffic(self) -> list[PeerTraffic]:
        rates = self._meter.rates
        return [PeerTraffic(peer=peer, sent=one.sent, received=one.received) for peer, one in rates.items()]

    def _report(self, epoch: int) -> WorkerReport:
        deployment, lifecycle = self._deployment, self._deployment.lifecycle
        assignment, duties = lifecycle.assignment, deployment.duties
        common = WorkerReport(
            id=self._id,
            epoch=epoch,
            state=lifecycle.state.value,
            arena_bytes=self._settings.arena_bytes,
            device=self._device,
            engine=self._settings.engine,
            paths=deployment.paths.by_peer,
            flows_out=deployment.flows_out,
            traffic=self._traffic(),
        )
        if assignment is None:
            return common
        manifest = assignment.manifest
        holding = Holding(
            model=assignment.model,
            version=manifest.held_as,
            ready=sorted(lifecycle.ready),
            total=len(manifest.blocks),
        )
        return structs.replace(
            common,
            model=assignment.model,
            plan_id=assignment.plan_id,
            version=manifest.version,
            instance=assignment.instance,
            role=assignment.role,
            rank=assignment.rank,
            holding=holding,
            load=self._serving.load(),
            helping=duties.live.source.helping,
            live_layers=duties.live_layers,
            live_waiting=duties.live_waiting,
            handed_over=duties.live.handed_over,
            kv_blocks=deployment.kv_blocks,
            pipeline=duties.pipelines.pipeline,
            stage=duties.pipelines.span,
            kv_way=duties.pipelines.kv_way,
        )
