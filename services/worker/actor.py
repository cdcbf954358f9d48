"""A worker's process: it joins the pool, obeys the planner and the router, and reports."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from msgspec import structs

from livescale.services.worker.deployment import Deployment
from livescale.services.worker.engine.contract import Runner
from livescale.services.worker.instance.metrics import WorkerMetrics
from livescale.services.worker.instance.serving import ServingLoop
from livescale.services.worker.instance.spans import WorkerSpans
from livescale.services.worker.resources import AnyArena, Resources
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.bus.contract import Context, Endpoint, Refusal, Topic
from livescale.shared.links.contract import Link
from livescale.shared.links.meter import Meter
from livescale.shared.memory.arena import Arena
from livescale.shared.memory.devices import CPU
from livescale.shared.messages.live import Help
from livescale.shared.messages.membership import Holding, PeerTraffic, WorkerReport
from livescale.shared.messages.message import Ack, Message
from livescale.shared.messages.pipelines import Pipeline
from livescale.shared.messages.requests import Admit, AskRunning, Replay, RunningRequests, arrived
from livescale.shared.messages.transfers import Drain, Load, Send, Serve
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

C = TypeVar("C", Load, Send, Serve, Drain, Help, Pipeline)
M = TypeVar("M", bound=Message)

LOAD_REPORT_SECONDS = 0.1  # how often a changed load is worth a heartbeat of its own


class Worker:
    """A worker of any model.

    Arena and KV memory are touched before it joins, so that a scale costs only the bytes of the parameters.
    """

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
        metrics = WorkerMetrics(world.telemetry, self._id, WorkerSpans.of(world.telemetry, world.clock))
        self._serving = ServingLoop(self._id, world.bus, world.clock, runner, metrics)
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
            self._deployment = Deployment(
                world, self._settings, resources, self._serving, tasks, self._membership.changed
            )
            await self._serve_endpoints()
            tasks.create_task(self._membership.run(), name="membership")
            tasks.create_task(self._serving.run(), name="steps")
            tasks.create_task(self._hear_cancels(), name="cancels")
            tasks.create_task(self._deployment.source.run(), name="pulls")
            tasks.create_task(self._hear(WITHDRAW, self._deployment.live.withdraw), name="withdrawals")
            tasks.create_task(self._hear_stages(), name="stages")
            tasks.create_task(self._hear(RANK_STEP, self._deployment.group.hear), name="rank steps")
            tasks.create_task(self._follow_leases(), name="leases")

    async def _serve_endpoints(self) -> None:
        deployment, me = self._deployment, {"id": self._id}
        live, pipelines, group = deployment.live, deployment.pipelines, deployment.group
        endpoints = [
            Endpoint(LOAD, self._in_epoch(deployment.load), me),
            Endpoint(SEND, self._in_epoch(deployment.send), me),
            Endpoint(SERVE, self._in_epoch(deployment.serve), me),
            Endpoint(DRAIN, self._in_epoch(deployment.drain), me),
            Endpoint(ABORT, deployment.abort, me),
            Endpoint(ADMIT, self._admit, me),
            Endpoint(RUNNING, self._running, me),
            Endpoint(REPLAY, self._replay, me),
            Endpoint(HELP, self._in_epoch(deployment.source.help), me),
            Endpoint(PIPELINE, self._in_epoch(pipelines.form), me),
            Endpoint(MOVE_KV, pipelines.move_kv, me),
            Endpoint(GIVE_KV, pipelines.give_kv, me),
            Endpoint(MEETING, group.where, me),
            Endpoint(RANK_TAKE, group.take, me),
            Endpoint(PULL, live.pull, me),
            Endpoint(TOOK, deployment.hand_offs.acknowledge, me),
        ]
        await self._world.bus.serve(self._world.info, endpoints)

    def _in_epoch(self, obey: Callable[[C, Context], Awaitable[Ack]]) -> Callable[[C, Context], Awaitable[Ack]]:
        """Refuse commands of another epoch, as the worker that they were meant for is no longer what it was then."""

        async def obey_in_epoch(command: C, context: Context) -> Ack:
            if command.epoch != self._membership.epoch:
                raise Refusal(409, f"epoch {command.epoch} is stale, this worker is at {self._membership.epoch}")
            return await obey(command, context)

        return obey_in_epoch

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

    async def _hear(self, topic: Topic[M], obey: Callable[[M], None]) -> None:
        async for received in await self._world.bus.subscribe(topic, id=self._id):
            obey(received.message)

    async def _hear_cancels(self) -> None:
        async for received in await self._world.bus.subscribe(CANCEL_WORK, id=self._id):
            self._serving.cancel(received.message.request_id)

    async def _hear_stages(self) -> None:
        pipelines = self._deployment.pipelines
        await together(
            self._hear(STAGE_BATCH, pipelines.batch),
            self._hear(STAGE_DONE, pipelines.done),
            self._hear(PIPELINE_OVER, pipelines.over),
        )

    async def _follow_leases(self) -> None:
        async for received in await self._world.bus.subscribe(LEASE):
            change = received.message
            if change.service == "worker" and change.state == "dead":
                self._deployment.lost(change.id)

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
        assignment, pipelines = lifecycle.assignment, deployment.pipelines
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
            helping=deployment.source.helping,
            live_layers=deployment.live_layers,
            live_waiting=deployment.live_waiting,
            handed_over=deployment.live.handed_over,
            kv_blocks=deployment.kv_blocks,
            pipeline=pipelines.pipeline,
            stage=pipelines.span,
            kv_way=pipelines.kv_way,
        )
