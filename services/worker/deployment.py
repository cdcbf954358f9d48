"""What the planner does with a worker: load, send, serve, drain, abort.

Each command is answered at once; what takes time goes on as a task and is told by events.
"""

import asyncio
from collections.abc import Callable

import structlog

from livescale.services.worker.disaggregation.sides import Disaggregation
from livescale.services.worker.instance.context import WorkerContext
from livescale.services.worker.instance.held import HeldInstance
from livescale.services.worker.instance.lifecycle import Lifecycle, WorkerState, check_load
from livescale.services.worker.instance.loading import Loading, Transport
from livescale.services.worker.instance.serving import ServingLoop
from livescale.services.worker.instance.vocabulary import VocabularyLearner
from livescale.services.worker.live.context import LiveContext
from livescale.services.worker.live.role import LiveRole, goes_live
from livescale.services.worker.live.source import LiveSource
from livescale.services.worker.pipeline.member import PipelineMember
from livescale.services.worker.resources import Resources
from livescale.services.worker.settings import WorkerSettings
from livescale.services.worker.tensor_parallel.group import GroupCallbacks, TensorParallelGroup
from livescale.shared.bus.contract import Ack, Context, Refusal
from livescale.shared.messages.transfers import Abort, Drain, Load, Send, Serve
from livescale.shared.runtime.waiting import end_tasks
from livescale.shared.transfer.sender import BlockSender

log = structlog.get_logger()


class Deployment:
    """The parameters in the arena, the instance they belong to, and by what it serves requests.

    It serves alone, live while it loads (`live`), or with others in a pipeline (`pipelines`); as one rank of several
    (`group`) or the only one. It helps others that load (`source`). `parameters` outlive the instance.
    """

    def __init__(
        self,
        context: WorkerContext,
        settings: WorkerSettings,
        resources: Resources,
        serving: ServingLoop,
        changed: Callable[[], None],
    ) -> None:
        """`changed` has the worker report itself at once."""
        world, tasks = context.world, context.tasks
        self._context = context
        self._id = context.me
        self.parameters = resources.parameters
        self._transport = Transport.of(
            world, resources.link, resources.hashing, tasks, resources.memory_export, resources.paths
        )
        self._serving = serving
        self._on_change = changed
        self._outgoing = BlockSender.of(world, resources.link, tasks, changed, resources.memory_export)
        instance = self.instance = HeldInstance(world, settings.limits_of, serving, changed)
        self._loading_task: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None
        self._recalling = asyncio.Lock()
        self._giving_up: asyncio.Task[None] | None = None
        self._clearing = asyncio.Lock()
        callbacks = GroupCallbacks(self._blocks_ready, self._rank_lost)
        self._vocabulary = VocabularyLearner(context, serving)
        group = self.group = TensorParallelGroup(context, settings.bind, callbacks)
        live_context = LiveContext.of(context, instance, group)
        self.source, self.live = LiveSource(live_context), LiveRole(live_context)
        live, source, switch_kv = self.live, self.source, settings.switch_kv
        self.pipelines = PipelineMember(context, instance, group, live, source, switch_kv)
        self.disaggregation = Disaggregation(
            context, instance, self._transport.kv_first, by_layer=settings.kv_transfer == "by-layer"
        )
        serving.on_batch, serving.on_rank_lost = lambda batch: group.leader.tell(batch), self._rank_lost

    @property
    def lifecycle(self) -> Lifecycle:
        return self.instance.lifecycle

    @property
    def kv_blocks(self) -> int:
        """KV blocks for the model that is here or on its way, or 0 before the engine is ready for it."""
        return 0 if self.instance.loading is None else self.instance.loading.kv_blocks

    @property
    def flows_out(self) -> int:
        """How many nodes parameters are sent to, by a source or a hop of a chain."""
        return len(self._outgoing)

    @property
    def live_layers(self) -> int:
        """How many layers this worker runs although others are missing."""
        return self.live.layers or self.pipelines.layers

    @property
    def live_waiting(self) -> int:
        """Requests that wait here for layers, or for a place in a batch of the pipeline that this worker leads."""
        if self.pipelines.leads and self._serving.scheduler is not None:
            return self._serving.scheduler.waiting
        return self.live.waiting

    def lost(self, worker: str) -> None:
        """The registry has declared this worker dead: nothing more comes from it, and nothing is on its way to it."""
        self.source.lost(worker)
        self.live.lost(worker)
        self.pipelines.lost(worker)
        self.group.lost(worker)
        self.disaggregation.lost(worker)

    async def load(self, command: Load, context: Context) -> Ack:
        check_load(command)
        if self._giving_up is not None:
            await asyncio.wait([self._giving_up])  # the caller may stop waiting before this ends
        if self.lifecycle.goes_on(command):
            return self._go_on(command)
        self.lifecycle.load(command)
        try:
            loading = self.instance.loading = self._place(command)
        except Refusal:
            self.lifecycle.release()
            raise
        work = self._load(loading, context.traceparent)
        self._loading_task = self._context.tasks.create_task(work, name=f"load {command.plan_id}")
        self._vocabulary.load(command)
        self.live.expect(command)
        self._on_change()
        return Ack()

    def _place(self, command: Load) -> Loading:
        """Raises Refusal: as `ParameterMemory.place`, and 400 for flows that fit no blocks."""
        memory = self.parameters.place(command)
        parts = self._context.world, self._context.runner, self._transport
        try:
            return Loading(self._id, command, memory, *parts, self._block_ready)
        except ValueError as error:
            self.parameters.clear()
            raise Refusal(400, f"inflows: {error}") from error

    def _go_on(self, command: Load) -> Ack:
        """The plan was made anew: receive what is still missing along other flows."""
        loading = self.instance.loading
        if loading is None or command.chunk_bytes != loading.command.chunk_bytes:
            raise Refusal(409, f"cannot go on with {command.instance}: its blocks are gone, or have other chunks")
        try:
            loading.go_on(command)
        except ValueError as error:
            raise Refusal(400, f"inflows: {error}") from error
        return Ack()

    async def send(self, command: Send, context: Context) -> Ack:
        loading = self.instance.find(command)
        may_send = loading.may_send(command.chunk_bytes)
        self._outgoing.start(command, loading.memory, may_send, loading.offer, context.traceparent)
        return Ack()

    async def serve(self, command: Serve, context: Context) -> Ack:
        """Answer SERVE: serve alone, after what a pipeline still has to do. Raises Refusal 409 before all is here."""
        instance, lifecycle = self.instance, self.lifecycle
        async with self._recalling:
            await instance.recall(command, self._draining)
        if lifecycle.whole and lifecycle.state is WorkerState.LOADING:
            await self.pipelines.leave()
            await self.pipelines.fetch_share(command)
        elif lifecycle.whole and lifecycle.state is WorkerState.LIVE:
            await self.pipelines.fill()
        lifecycle = instance.lifecycle  # it may have been fenced meanwhile
        before, loading = lifecycle.state, instance.loading
        lifecycle.serve(command)
        if before is WorkerState.LOADING and loading is not None:
            self.live.missed()
            if self._serving.scheduler is None and loading.command.rank == 0:
                instance.open(loading, whole=True)
        if before is WorkerState.LIVE:
            self.pipelines.switch()
        if before is not WorkerState.SERVING:
            instance.tell("serving")
            instance.changed()
        self.group.whole(command.instance)
        return Ack()

    async def drain(self, command: Drain, context: Context) -> Ack:
        async with self._recalling:  # what is being recalled can be drained again, and drains still
            if self.lifecycle.drain(command):
                self._draining = self._context.tasks.create_task(self._drain(), name=f"drain {command.instance}")
                self._on_change()
        return Ack()

    async def abort(self, command: Abort, context: Context) -> Ack:
        self._outgoing.abort(command.plan_id)
        if self.lifecycle.aborts(command.plan_id):
            self.lifecycle.give_back()
            log.info("load_aborted", plan=command.plan_id, reason=command.reason)
            await end_tasks(self._loading_task)
            await self._release_if_loading(command.plan_id)
        return Ack()

    def give_up(self) -> None:
        """Become spare at once: the registry had declared this worker dead, and nothing it holds is its own any more.

        What is still running ends before anything is loaded again.
        """
        self._serving.close()
        self.parameters.forget()  # or a plan would count on what is about to go
        self.instance.lifecycle = Lifecycle()
        self._giving_up = self._context.tasks.create_task(self._end_everything(self._giving_up), name="fence")

    def _rank_lost(self, reason: str) -> None:
        """End an instance of several ranks with the first of them. Its requests go on elsewhere."""
        log.warning("rank_lost", worker=self._id, reason=reason)
        self._serving.lose(reason)
        self._serving.close()
        if self.lifecycle.state is WorkerState.SERVING:
            self.lifecycle.leave()
            self._draining = self._context.tasks.create_task(self._drain(), name="drain for want of a rank")
        elif self.lifecycle.state in (WorkerState.LOADING, WorkerState.LIVE):
            if self.instance.loading is not None:
                self.instance.loading.fail(reason)
            self.give_up()
        self._on_change()

    async def _end_everything(self, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        await self.source.give_up()
        await end_tasks(self._draining, self._loading_task)
        await self._clear()

    async def _load(self, loading: Loading, traceparent: str | None) -> None:
        if not await loading.run(self.group.meet, traceparent):
            await self._release_if_loading(loading.command.plan_id)

    def _block_ready(self, plan_id: str, index: int) -> None:
        if self.instance.loading is None or not self.lifecycle.block_ready(plan_id, index):
            return
        self.group.have(self.lifecycle.ready)
        self._blocks_ready()
        self._on_change()

    def _blocks_ready(self) -> None:
        """More blocks are ready, here or at another rank: those that all ranks have may be run."""
        loading = self.instance.loading
        if loading is None:
            return
        ready = self.group.leader.everywhere(self.lifecycle.ready)
        if goes_live(loading.command) and self.lifecycle.may_go_live(ready):
            self.live.begin(loading.command, self.instance.go_live(loading), ready)
        else:
            self.live.blocks_ready(ready)

    async def _drain(self) -> None:
        """Finish what runs and what is being sent on, then be spare."""
        await self.source.stop()
        await self.group.led()
        await self._serving.idle.wait()
        self._serving.close()
        if self._loading_task is not None:
            await asyncio.wait([self._loading_task])
        await self._outgoing.none.wait()
        await self._release(park=True)

    async def _release_if_loading(self, plan_id: str) -> None:
        if self.lifecycle.aborts(plan_id):
            self.lifecycle.give_back()
            self._serving.lose(f"{self._id} gave up loading")
            self._serving.close()
            await self._release()

    async def _release(self, *, park: bool = False) -> None:
        lifecycle = self.lifecycle
        await self._clear(park=park)
        if self.lifecycle is lifecycle:  # else it was fenced meanwhile
            self.instance.tell("spare")
            self.lifecycle.release()
            self._on_change()

    async def _clear(self, *, park: bool = False) -> None:
        """Forget the parameters, or park them. All let go of the memory before anything else may be placed in it."""
        async with self._clearing:  # a fence waits for an abort, whose flows may still write
            loading, self.instance.loading = self.instance.loading, None
            self._vocabulary.end()
            reason = f"{self._id} gave its parameters back"
            await self.pipelines.end(reason)
            await self.live.end(reason)
            await self.group.end()
            await self.disaggregation.end(reason)
            self._outgoing.abort_all(reason)
            await self._outgoing.none.wait()
            await self._context.runner.unload()
            if not (park and self.parameters.park(loading)):
                self.parameters.clear()
            if loading is not None:
                await loading.forget()
            self._on_change()
