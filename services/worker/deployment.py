"""What the planner does with a worker: load, send, serve, drain, abort.

Each command is answered at once; what takes time goes on as a task and is told by events.
"""

import asyncio

import structlog

from livescale.services.worker.duties import Duties
from livescale.services.worker.instance import Instance
from livescale.services.worker.lifecycle import Lifecycle, State
from livescale.services.worker.live.counts import LiveCounts
from livescale.services.worker.live.parts import Parts
from livescale.services.worker.loading import LoadCounts, Loading, Transport
from livescale.services.worker.orders import check_load
from livescale.services.worker.ranks.side import RanksTold, TensorParallel
from livescale.services.worker.resources import Resources
from livescale.services.worker.serving import Serving
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.bus.contract import Context, Refusal
from livescale.shared.links.meter import MeteredLink, Paths
from livescale.shared.memory.arena import ArenaFull
from livescale.shared.messages.live import Help
from livescale.shared.messages.message import Ack
from livescale.shared.messages.pipelines import Pipeline
from livescale.shared.messages.transfers import Abort, Drain, Load, Send, Serve
from livescale.shared.process.membership import Membership
from livescale.shared.process.run import World
from livescale.shared.transfer.sender import BlockSender

log = structlog.get_logger()


class Deployment:
    """The parameters in the arena and the instance they belong to."""

    def __init__(
        self,
        world: World,
        settings: WorkerSettings,
        resources: Resources,
        serving: Serving,
        tasks: asyncio.TaskGroup,
        membership: Membership,
    ) -> None:
        self._membership = membership
        self._world = world
        self._id = world.info.id
        self._arena = resources.arena
        self._transport = Transport(resources.link, resources.hashing, tasks, resources.door)
        self._runner = resources.runner
        self._serving = serving
        self._tasks = tasks
        self._on_change = membership.changed
        self._outgoing = BlockSender(self._id, resources.link, tasks, membership.changed, resources.door)
        self._counts = LoadCounts(world.telemetry)
        self.paths = Paths()
        self._instance = Instance(world, settings, serving, membership.changed)
        self._loading_task: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None
        self._giving_up: asyncio.Task[None] | None = None
        link, counts = MeteredLink(resources.link, resources.meter), LiveCounts(world.telemetry)
        told = RanksTold(self._blocks_ready, self._rank_lost)
        self.ranks = TensorParallel(world, resources.runner, link, settings.bind, tasks, told)
        self.duties = Duties(Parts(world, link, resources.runner, serving, tasks, counts, self.ranks), self._instance)
        serving.on_batch, serving.on_rank_lost = lambda batch: self.ranks.leader.tell(batch), self._rank_lost

    @property
    def lifecycle(self) -> Lifecycle:
        return self._instance.lifecycle

    @property
    def kv_blocks(self) -> int:
        """For the model that is here or on its way; none before the engine is ready for it."""
        return 0 if self._instance.loading is None else self._instance.loading.kv_blocks

    @property
    def flows_out(self) -> int:
        """Nodes that parameters are being sent to, as a source or as a hop."""
        return len(self._outgoing)

    async def load(self, command: Load, context: Context) -> Ack:
        self._check_epoch(command.epoch)
        check_load(command)
        if self._giving_up is not None:
            await asyncio.wait([self._giving_up])  # whoever asked may not have the patience
        if self.lifecycle.goes_on(command):
            return self._go_on(command)
        self.lifecycle.load(command)
        try:
            loading = self._instance.loading = self._place(command)
        except Refusal:
            self.lifecycle.release()
            raise
        self._loading_task = self._tasks.create_task(self._load(loading), name=f"load {command.plan_id}")
        self.duties.live.expect(command)
        self._on_change()
        return Ack()

    def _place(self, command: Load) -> Loading:
        """Raises Refusal: 409 where the arena is too small, 400 for flows that fit no blocks."""
        try:
            memory = self._arena.place([block.size_bytes for block in command.manifest.blocks])
        except ArenaFull as error:
            raise Refusal(409, f"arena_bytes: {error}") from error
        parts = self._world, self._runner, self._transport, self._counts, self.paths
        try:
            return Loading(self._id, command, memory, *parts, self._block_ready)
        except ValueError as error:
            self._arena.clear()
            raise Refusal(400, f"inflows: {error}") from error

    def _go_on(self, command: Load) -> Ack:
        """The plan was made anew: receive what is still missing along other flows."""
        loading = self._instance.loading
        if loading is None or command.chunk_bytes != loading.command.chunk_bytes:
            raise Refusal(409, f"cannot go on with {command.instance}: what arrived is gone, or in other chunks")
        try:
            loading.go_on(command)
        except ValueError as error:
            raise Refusal(400, f"inflows: {error}") from error
        return Ack()

    async def send(self, command: Send, context: Context) -> Ack:
        self._check_epoch(command.epoch)
        loading = self._instance.loading
        wanted = command.version, command.shard
        if loading is None or (loading.manifest.version, loading.manifest.shard) != wanted:
            held = "nothing" if loading is None else loading.manifest.held_as
            what = f"version {command.version}" + (f", shard {command.shard}" if command.shard else "")
            raise Refusal(409, f"cannot send {what}: this worker holds {held}")
        self._outgoing.start(command, loading.memory, loading.may_send(command.chunk_bytes), loading.offer)
        return Ack()

    async def serve(self, command: Serve, context: Context) -> Ack:
        self._check_epoch(command.epoch)
        ack = await self.duties.serve(command, context)
        self.ranks.whole(command.instance)
        return ack

    async def help(self, command: Help, context: Context) -> Ack:
        self._check_epoch(command.epoch)
        return await self.duties.help(command, context)

    async def pipeline(self, command: Pipeline, context: Context) -> Ack:
        self._check_epoch(command.epoch)
        return await self.duties.pipeline(command, context)

    async def drain(self, command: Drain, context: Context) -> Ack:
        self._check_epoch(command.epoch)
        if self.lifecycle.drain(command):
            self._draining = self._tasks.create_task(self._drain(), name=f"drain {command.instance}")
            self._on_change()
        return Ack()

    async def abort(self, command: Abort, context: Context) -> Ack:
        self._outgoing.abort(command.plan_id)
        if self.lifecycle.aborts(command.plan_id):
            log.info("load_aborted", plan=command.plan_id, reason=command.reason)
            await _stop(self._loading_task)
            await self._release_if_loading(command.plan_id)
        return Ack()

    def give_up(self) -> None:
        """The registry had declared this worker dead: nothing it holds is its own any more. Spare at once; what is
        still running ends before anything is loaded again."""
        self._serving.close()
        self._instance.lifecycle = Lifecycle()
        self._giving_up = self._tasks.create_task(self._end_everything(self._giving_up), name="fence")

    def _rank_lost(self, reason: str) -> None:
        """An instance of several ranks ends with the first of them; its requests go on elsewhere."""
        log.warning("rank_lost", worker=self._id, reason=reason)
        self._serving.lose(reason)
        self._serving.close()
        if self.lifecycle.state is State.SERVING:
            self.lifecycle.leave()
            self._draining = self._tasks.create_task(self._drain(), name="drain for want of a rank")
        elif self.lifecycle.state in (State.LOADING, State.LIVE):
            if self._instance.loading is not None:
                self._instance.loading.fail(reason)
            self.give_up()
        self._on_change()

    async def _end_everything(self, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        await self.duties.live.source.give_up()
        await _stop(self._draining)
        await _stop(self._loading_task)
        await self._clear()

    async def _load(self, loading: Loading) -> None:
        if not await loading.run(self.ranks.meet):
            await self._release_if_loading(loading.command.plan_id)

    def _block_ready(self, plan_id: str, index: int) -> None:
        if self._instance.loading is None or not self.lifecycle.block_ready(plan_id, index):
            return
        self.ranks.have(self.lifecycle.ready)
        self._blocks_ready()
        self._on_change()

    def _blocks_ready(self) -> None:
        """Here, or at another rank."""
        if self._instance.loading is not None:
            self.duties.blocks_ready(self.ranks.leader.everywhere(self.lifecycle.ready), self._instance.loading)

    async def _drain(self) -> None:
        """Finish what runs and what is being sent on, then be spare."""
        await self.duties.live.source.stop()
        await self.ranks.led()
        await self._serving.idle.wait()
        self._serving.close()
        if self._loading_task is not None:
            await asyncio.wait([self._loading_task])
        await self._outgoing.none.wait()
        await self._release()

    async def _release_if_loading(self, plan_id: str) -> None:
        if self.lifecycle.aborts(plan_id):
            self._serving.lose(f"{self._id} gave up loading")
            self._serving.close()
            await self._release()

    async def _release(self) -> None:
        assignment = self.lifecycle.assignment
        await self._clear()
        if self.lifecycle.assignment is assignment:  # else it was fenced meanwhile
            self._instance.tell("spare")
            self.lifecycle.release()
            self._on_change()

    async def _clear(self) -> None:
        """Forget the parameters. All let go of the arena before anything else may be placed in it."""
        loading, self._instance.loading = self._instance.loading, None
        await self.duties.end(f"{self._id} gave its parameters back")
        await self.ranks.end()
        self._outgoing.abort_all()
        await self._outgoing.none.wait()
        await self._runner.unload()
        if loading is not None:
            loading.forget()
        self._arena.clear()
        self._on_change()

    def _check_epoch(self, epoch: int) -> None:
        if epoch != self._membership.epoch:
            raise Refusal(409, f"epoch {epoch} is stale, this worker is at {self._membership.epoch}")


async def _stop(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.wait([task])
