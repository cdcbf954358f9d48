"""A worker's process: it joins the pool, obeys the planner and the router, and reports."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from msgspec import structs

from livescale.services.worker.adapter_fetcher import AdapterFetcher
from livescale.services.worker.adapters import AdapterStore
from livescale.services.worker.deployment import Deployment
from livescale.services.worker.instance.context import WorkerContext
from livescale.services.worker.instance.metrics import WorkerMetrics
from livescale.services.worker.instance.serving import ServingLoop
from livescale.services.worker.instance.spans import WorkerSpans
from livescale.services.worker.mesh import PeerMesh
from livescale.services.worker.resources import ResourceMaker, Resources
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.bus.contract import Ack, Context, Endpoint, M, Refusal, Topic
from livescale.shared.messages.membership import Holding, PeerTraffic, Role, WorkerReport
from livescale.shared.process.run import World
from livescale.shared.process.system_port import WhyNotReady, starting
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.subjects import (
    ABORT,
    ADMIT,
    CANCEL_WORK,
    CHANGE_ROLE,
    DEATH,
    DRAIN,
    GIVE_KV,
    HAND_OVER,
    HELP,
    LOAD,
    MEETING,
    MOVE_KV,
    PIPELINE,
    PIPELINE_OVER,
    PULL,
    RANK_ADAPTER,
    RANK_LEFT,
    RANK_STEP,
    RANK_TAKE,
    RELEASE_KV,
    REPLAY,
    RESERVE,
    RUNNING,
    SEND,
    SERVE,
    STAGE_ADAPTER,
    STAGE_BATCH,
    STAGE_DONE,
    TAKE_OVER,
    TOOK,
    WITHDRAW,
)

LOAD_REPORT_SECONDS = 0.1  # the shortest time between two reports of changed loads


class EpochCommand(Protocol):
    """A command that is meant for a worker in one of its epochs."""

    @property
    def epoch(self) -> int: ...


C = TypeVar("C", bound=EpochCommand)


class Worker:
    """A worker of any model.

    Arena and KV memory are touched before it joins, so that a scale costs only the bytes of the parameters.
    """

    def __init__(self, world: World, settings: WorkerSettings, maker: ResourceMaker) -> None:
        self._world = world
        self._id = world.info.id
        self._settings = settings
        self._maker = maker
        self._load_changed = asyncio.Event()
        self._instance_seconds = InstanceSeconds(world.telemetry)
        self._why_not_ready: WhyNotReady = starting

    async def run(self) -> None:
        """Serve until cancelled. Raises MemoryError where what the settings ask for cannot be had."""
        settings = self._settings
        opening = self._maker.open(
            settings.arena_bytes, self._world.clock.now, keep_parameters=settings.keep_parameters
        )
        async with opening as resources:
            await self._work(resources)

    async def why_not_ready(self) -> str | None:
        """Why it does not serve its role just now; None where it does."""
        return await self._why_not_ready()

    async def _work(self, resources: Resources) -> None:
        world, runner = self._world, resources.runner
        kernels = await runner.kernels_name()
        metrics = WorkerMetrics(world.telemetry, self._id, WorkerSpans.of(world.telemetry, world.clock))
        self._serving = serving = ServingLoop(self._id, world.bus, world.clock, runner, metrics)
        serving.on_step = self._load_changed.set
        async with asyncio.TaskGroup() as tasks:
            self._membership = membership = world.membership(
                "worker",
                address=resources.link.address,
                report=lambda epoch: self._report(epoch, resources),
                on_stale=lambda: self._deployment.give_up(),
                place=self._settings.place,
                kernels=kernels,
            )
            self._why_not_ready = membership.why_not_ready
            context = WorkerContext(world, resources.metered_link, tasks, runner)
            self._deployment = Deployment(context, self._settings, resources, serving, membership.changed)
            group, stages = self._deployment.group, self._deployment.pipelines.adapters
            fetcher = AdapterFetcher(context, resources.link, resources.hashing, self._maker.new_memory)
            AdapterStore(context, serving, group, stages, fetcher, self._settings.adapter_bytes)
            mesh = PeerMesh(context, resources.link, membership.joined)
            await world.bus.serve(world.info, [*self._endpoints(self._deployment), *mesh.endpoints()])
            tasks.create_task(membership.run(), name="membership")
            tasks.create_task(self._report_loads(), name="load reports")
            tasks.create_task(serving.run(), name="steps")
            tasks.create_task(self._deployment.source.run(), name="pulls")
            tasks.create_task(mesh.run(), name="greetings")
            self._listen(tasks, self._deployment, mesh)

    def _report(self, epoch: int, resources: Resources) -> WorkerReport:
        report = make_report(self._world, epoch, self._settings, self._maker.device, resources, self._deployment)
        self._instance_seconds.note(report.model, report.role, self._world.clock.now())
        return report

    def _endpoints(self, deployment: Deployment) -> list[Endpoint]:
        """Each call and the object that answers it."""
        me, serving = {"id": self._id}, self._serving
        live, pipelines, group = deployment.live, deployment.pipelines, deployment.group
        kv = deployment.disaggregation
        return [
            Endpoint(LOAD, self._in_epoch(deployment.load), me),
            Endpoint(SEND, self._in_epoch(deployment.send), me),
            Endpoint(SERVE, self._in_epoch(deployment.serve), me),
            Endpoint(DRAIN, self._in_epoch(deployment.drain), me),
            Endpoint(ABORT, deployment.abort, me),
            Endpoint(ADMIT, deployment.instance.admit, me),
            Endpoint(RESERVE, kv.decode.reserve, me),
            Endpoint(TAKE_OVER, kv.decode.take_over, me),
            Endpoint(RELEASE_KV, kv.decode.release, me),
            Endpoint(HAND_OVER, kv.prefill.hand_over, me),
            Endpoint(CHANGE_ROLE, self._in_epoch(kv.change_role), me),
            Endpoint(RUNNING, deployment.instance.tell_running, me),
            Endpoint(REPLAY, serving.replay, me),
            Endpoint(HELP, self._in_epoch(deployment.source.help), me),
            Endpoint(PIPELINE, self._in_epoch(pipelines.form), me),
            Endpoint(MOVE_KV, pipelines.move_kv, me),
            Endpoint(GIVE_KV, pipelines.give_kv, me),
            Endpoint(STAGE_ADAPTER, pipelines.bring_adapter, me),
            Endpoint(MEETING, group.where, me),
            Endpoint(RANK_TAKE, group.take, me),
            Endpoint(RANK_LEFT, group.left, me),
            Endpoint(RANK_ADAPTER, group.bring, me),
            Endpoint(PULL, live.pull, me),
            Endpoint(TOOK, live.hand_offs.acknowledge, me),
        ]

    def _listen(self, tasks: asyncio.TaskGroup, deployment: Deployment, mesh: PeerMesh) -> None:
        """Have each one-way message heard by the object that it is for."""
        pipelines = deployment.pipelines
        tasks.create_task(
            self._hear(CANCEL_WORK, lambda cancel: self._serving.cancel(cancel.request_id)), name="cancels"
        )
        tasks.create_task(self._hear(WITHDRAW, deployment.live.withdraw), name="withdrawals")
        tasks.create_task(self._hear(STAGE_BATCH, pipelines.batch), name="batches")
        tasks.create_task(self._hear(STAGE_DONE, pipelines.done), name="stages that are done")
        tasks.create_task(self._hear(PIPELINE_OVER, pipelines.over), name="pipelines that are over")
        tasks.create_task(self._hear(RANK_STEP, deployment.group.hear), name="rank steps")
        tasks.create_task(self._follow_deaths(deployment, mesh), name="deaths")

    async def _hear(self, topic: Topic[M], obey: Callable[[M], None]) -> None:
        async for received in await self._world.bus.subscribe(topic, id=self._id):
            obey(received.message)

    async def _follow_deaths(self, deployment: Deployment, mesh: PeerMesh) -> None:
        async for received in await self._world.bus.subscribe(DEATH, service="worker"):
            deployment.lost(received.message.id)
            mesh.lost(received.message.id)

    def _in_epoch(self, obey: Callable[[C, Context], Awaitable[Ack]]) -> Callable[[C, Context], Awaitable[Ack]]:
        """Refuse commands of another epoch, as the worker that they were meant for is no longer what it was then."""

        async def obey_in_epoch(command: C, context: Context) -> Ack:
            if command.epoch != self._membership.epoch:
                raise Refusal(409, f"epoch {command.epoch} is stale, this worker is at {self._membership.epoch}")
            return await obey(command, context)

        return obey_in_epoch

    async def _report_loads(self) -> None:
        """Report each change of the load soon, and no more often than is worth it; the last change too."""
        while True:
            await self._load_changed.wait()
            self._load_changed.clear()
            self._membership.changed()
            await asyncio.sleep(LOAD_REPORT_SECONDS)


def make_report(
    world: World, epoch: int, settings: WorkerSettings, device: str, resources: Resources, deployment: Deployment
) -> WorkerReport:
    """Return the state of the worker, and what it has and does where it is not spare."""
    instance = deployment.instance
    common = WorkerReport(
        id=world.info.id,
        epoch=epoch,
        state=instance.lifecycle.state.value,
        arena_bytes=settings.arena_bytes,
        device=device,
        host=world.host,
        engine=settings.engine,
        paths=resources.paths.by_peer,
        flows_out=deployment.flows_out,
        parked=deployment.parameters.parked,
        traffic=_traffic(resources),
    )
    assignment = instance.lifecycle.assignment
    if assignment is None:
        return common
    prefill, load, pipelines = deployment.disaggregation.prefill, instance.serving.load(), deployment.pipelines
    manifest = assignment.manifest
    return structs.replace(
        common,
        model=assignment.model,
        plan_id=assignment.plan_id,
        version=manifest.version,
        instance=assignment.instance,
        role=assignment.role,
        rank=assignment.rank,
        holding=Holding(
            model=assignment.model,
            version=manifest.held_as,
            ready=sorted(instance.lifecycle.ready),
            total=len(manifest.blocks),
        ),
        load=load and structs.replace(load, kv_tokens_per_second=prefill.tokens_per_second),
        helping=deployment.source.helping,
        live_layers=deployment.live_layers,
        live_waiting=deployment.live_waiting,
        handed_over=deployment.live.handed_over,
        kv_blocks=deployment.kv_blocks,
        pipeline=pipelines.pipeline,
        stage=pipelines.span,
        kv_way=pipelines.kv_way,
        sending_kv=len(prefill),
    )


def _traffic(resources: Resources) -> list[PeerTraffic]:
    if not (rates := resources.meter.rates):
        return []
    return [PeerTraffic(peer=peer, sent=one.sent, received=one.received) for peer, one in rates.items()]


Use = tuple[str, Role]  # the model, and the instance's role


class InstanceSeconds:
    """Counts the seconds in which a worker loads, serves or drains. Call `note` whenever it reports itself."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._seconds = telemetry.counter(
            "livescale_worker_instance_seconds_total",
            "Seconds in which the worker was part of an instance, loading and draining included",
            ["model_name", "role"],
        )
        self._use: Use | None = None
        self._counted_until = 0.0

    def note(self, model: str | None, role: Role | None, now: float) -> None:
        """Count the time up to `now` for what the worker was used for; from now on this is its use, if any."""
        if self._use is not None:
            self._seconds.labels(*self._use).inc(now - self._counted_until)
        self._use = None if model is None or role is None else (model, role)
        self._counted_until = now
