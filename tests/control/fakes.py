"""Small workers and hosts that speak the contract: bytes and tokens take virtual time, nothing is computed."""

import asyncio
from collections.abc import Coroutine
from contextvars import copy_context
from dataclasses import dataclass

from livescale.services.worker.lifecycle import Lifecycle
from livescale.services.worker.scheduling.outputs import TokenHistory
from livescale.shared.bus.contract import Bus, Context, Endpoint, Refusal, ServiceInfo
from livescale.shared.membership import Membership
from livescale.shared.messages.copies import CheckModel, FetchModel, ModelChecked, ModelRead, ReadModel, ReleaseModel
from livescale.shared.messages.live import Help, RequestsMoved
from livescale.shared.messages.membership import EngineLoad, Holding, HostReport, PeerTraffic, WorkerReport, WorkerState
from livescale.shared.messages.message import Ack
from livescale.shared.messages.parameters import Block, Manifest, ModelConfig, ModelSpec
from livescale.shared.messages.requests import (
    Admit,
    AskRunning,
    Cancel,
    Replay,
    RequestLost,
    RequestsEnded,
    Running,
    RunningRequests,
    Submit,
    TokenFrame,
    Tokens,
)
from livescale.shared.messages.transfers import (
    Abort,
    BlockReady,
    Drain,
    Inflow,
    InstanceServing,
    Load,
    Send,
    Serve,
    Transfer,
)
from livescale.shared.subjects import (
    ABORT,
    ADMIT,
    BLOCK,
    CANCEL_WORK,
    CHECK_MODEL,
    DRAIN,
    ENDED,
    FETCH_MODEL,
    HELP,
    INSTANCE,
    LOAD,
    MODEL_READ,
    MOVED,
    PIPELINE,
    PIPELINE_OVER,
    READ_MODEL,
    RELEASE_MODEL,
    REPLAY,
    RUNNING,
    SEND,
    SERVE,
    TOKENS,
    TRANSFER,
)
from livescale.shared.virtual_time import Process, this_process
from livescale.shared.world import LoopClock
from tests.control.fake_stages import FakeStages

CLOCK = LoopClock(epoch=1_000_000.0)
BLOCKS, BLOCK_BYTES = 4, 1_000_000
SIZE = BLOCKS * BLOCK_BYTES
RATE = 20e6  # bytes a second between any two
STEP_SECONDS = 0.02
PREFILL_RATE = 2_000.0
SLOTS = 4
PATIENCE_SECONDS = 2.0  # a block is waited for
ALONE_SECONDS = 10.0  # a host waits for somebody else who has a model


def manifest(version: str) -> Manifest:
    config = ModelConfig(
        family="llama",
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=BLOCKS - 2,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
        max_position_embeddings=512,
    )
    blocks = [Block(index=i, name=f"b{i}", size_bytes=BLOCK_BYTES, checksum=0, tensors=[]) for i in range(BLOCKS)]
    return Manifest(version=version, config=config, dtype="float32", blocks=blocks)


def whole(model: str, version: str) -> Holding:
    return Holding(model=model, version=version, ready=list(range(BLOCKS)), total=BLOCKS)


def start(node: "Node", work: Coroutine[None, None, None]) -> None:
    """In its own process, whoever asks for it. Nothing of somebody who is ending."""
    try:
        node.tasks.create_task(work, context=node.context.copy())
    except RuntimeError:
        work.close()


class Node:
    """What a fake worker and a fake host have in common: membership and sending."""

    def __init__(self, bus: Bus, fabric: dict[str, "Node"]) -> None:
        self.bus = bus
        self.fabric = fabric
        self.tasks: asyncio.TaskGroup = asyncio.TaskGroup()
        self.context = copy_context()
        self.process: Process | None = None
        self.sends: list[Send] = []
        self.aborts: list[Abort] = []

    def enter(self) -> None:
        """From here on it is what this process does."""
        self.context, self.process = copy_context(), this_process()

    @property
    def is_stopped(self) -> bool:
        """Nothing comes from it."""
        return self.process is not None and self.process.is_stopped

    async def send(self, send: Send, context: Context) -> Ack:
        self.sends.append(send)
        for flow in send.outflows:
            target = self.fabric.get(flow.downstream.id)
            if isinstance(target, FakeWorker | FakeHost):  # those who are gone get nothing
                target.begin(flow.ticket)
        return Ack()

    def has(self, version: str, index: int) -> bool:
        """Whether the block can be passed on."""
        raise NotImplementedError


class FakeHost(Node):
    """Reads any model but those that are called bad; one that it knows from before a block at a time.

    What `edited` has is the content of that path, else it follows from the path.
    """

    def __init__(self, bus: Bus, id: str, fabric: dict[str, Node]) -> None:
        super().__init__(bus, fabric)
        self.id = id
        self.holdings: list[Holding] = []
        self.read_seconds = 0.2
        self.limit_bytes = 100 * SIZE
        self.reads: list[str] = []
        self.fetches: dict[int, FetchModel] = {}  # by ticket, until something comes along it
        self.orders: dict[str, FetchModel] = {}  # the last one, by version
        self.brought: list[tuple[str, int]] = []  # by whom, which block
        self.fetched: list[str] = []
        self.released: list[ReleaseModel] = []
        self.edited: dict[str, str] = {}
        self.unreadable: str | None = None
        self.knows = False
        self.break_after_blocks: int | None = None  # of a known model, once
        self.membership = Membership(bus, CLOCK, "host", id, f"box-{id}", address=id.encode(), report=self.report)
        fabric[id] = self

    def has(self, version: str, index: int) -> bool:
        return any(holding.version == version and index in holding.ready for holding in self.holdings)

    def report(self, epoch: int) -> HostReport:
        cached = sum(holding.size_bytes for holding in self.holdings)
        return HostReport(
            id=self.id, epoch=epoch, holdings=self.holdings, cache_bytes=cached, cache_limit_bytes=self.limit_bytes
        )

    async def run(self) -> None:
        self.enter()
        holes = {"id": self.id}
        endpoints = [
            Endpoint(CHECK_MODEL, self.check, holes),
            Endpoint(READ_MODEL, self.read, holes),
            Endpoint(FETCH_MODEL, self.fetch, holes),
            Endpoint(RELEASE_MODEL, self.release, holes),
            Endpoint(SEND, self.send, holes),
        ]
        await self.bus.serve(ServiceInfo("host", self.id, "a fake host"), endpoints)
        async with self.tasks as group:
            group.create_task(self.membership.run())

    async def send(self, send: Send, context: Context) -> Ack:
        stored = send.from_disk
        if stored is not None and self.find(stored.spec.name, send.version) is None:
            self.reads.append(stored.spec.name)
            self.hold(stored.spec.name, send.version, [])
            start(self, self.read_blocks(stored.spec.name, send.version, send.version, broken=False))
        return await super().send(send, context)

    def version_of(self, spec: ModelSpec) -> str:
        default = f"v-{spec.name}" if spec.path == f"/models/{spec.name}" else f"v-{spec.name}-{spec.path}"
        return self.edited.get(spec.path, default)

    def find(self, model: str, version: str) -> Holding | None:
        return next((one for one in self.holdings if (one.model, one.version) == (model, version)), None)

    async def check(self, check: CheckModel, context: Context) -> ModelChecked:
        if "missing" in check.spec.path:
            raise Refusal(422, f"{check.spec.path}: no config.json")
        version = self.version_of(check.spec)
        knows = self.knows or self.find(check.spec.name, version) is not None
        return ModelChecked(
            size_bytes=SIZE, blocks=BLOCKS, max_model_len=512, manifest=manifest(version) if knows else None
        )

    async def read(self, read: ReadModel, context: Context) -> ModelChecked:
        name, version = read.spec.name, self.version_of(read.spec)
        self.reads.append(name)
        checked = await self.check(CheckModel(spec=read.spec), context)
        held = self.find(name, version)
        if held is not None and len(held.ready) == BLOCKS:
            self.tell(name, version)
        elif held is None and self.find(name, "") is None:
            shown = version if self.knows else ""
            self.hold(name, shown, [])
            self.tasks.create_task(self.read_blocks(name, shown, version, "broken" in read.spec.path))
        return checked

    def hold(self, name: str, version: str, ready: list[int]) -> None:
        """Of this version so much, in place of what there was."""
        others = [one for one in self.holdings if (one.model, one.version) != (name, version)]
        if sum(one.size_bytes for one in others) + SIZE > self.limit_bytes:
            raise Refusal(409, "the cache is full")
        self.holdings = [*others, Holding(model=name, version=version, ready=ready, total=BLOCKS, size_bytes=SIZE)]
        self.membership.changed()

    async def read_blocks(self, name: str, shown: str, version: str, broken: bool) -> None:
        """`shown`: the version as far as it is known."""
        error = "block 2 is cut short" if broken else self.unreadable
        for index in range(BLOCKS):
            await asyncio.sleep(self.read_seconds / BLOCKS)
            if self.find(name, shown) is None:
                return
            if index == self.break_after_blocks:
                self.break_after_blocks, error = None, "the disk is gone"
                break
            if shown:
                self.hold(name, shown, list(range(index + 1)))
        self.arrived(name, shown, version, error)

    def arrived(self, name: str, shown: str, version: str, error: str | None) -> None:
        self.holdings = [one for one in self.holdings if (one.model, one.version) != (name, shown)]
        if error is None:
            self.hold(name, version, list(range(BLOCKS)))
        self.tell(name, version, error)
        self.membership.changed()

    def tell(self, name: str, version: str, error: str | None = None) -> None:
        event = ModelRead(host=self.id, model=name, manifest=None if error else manifest(version), error=error)
        self.bus.publish(MODEL_READ, event, host=self.id)

    async def fetch(self, fetch: FetchModel, context: Context) -> Ack:
        version = fetch.manifest.version
        held = self.find(fetch.spec.name, version)
        if held is None:
            self.hold(fetch.spec.name, version, [])
        elif len(held.ready) == BLOCKS or self.orders[version].plan_id != fetch.plan_id:
            return Ack()
        self.orders[version] = fetch
        self.fetches.update({flow.ticket: fetch for flow in fetch.inflows})
        start(self, self.read_alone(fetch, ALONE_SECONDS if fetch.inflows else 0.0))
        return Ack()

    async def read_alone(self, fetch: FetchModel, seconds: float) -> None:
        """What is missing, where nothing comes along the flow any more and nobody says where else it is."""
        await asyncio.sleep(seconds)
        name, version = fetch.spec.name, fetch.manifest.version
        while self.orders.get(version) is fetch and (held := self.find(name, version)) and len(held.ready) < BLOCKS:
            if seconds and not self.fetches.keys() & {flow.ticket for flow in fetch.inflows}:
                return  # it comes, or whoever found it lost sees to it
            await asyncio.sleep(self.read_seconds / BLOCKS)
            self.take(name, version, "disk")

    def begin(self, ticket: int) -> None:
        """Bytes come in along a flow; not of one that has begun, nor that an earlier process was asked to fetch."""
        fetch = self.fetches.pop(ticket, None)
        if fetch is not None:
            start(self, self.receive(fetch))

    async def receive(self, fetch: FetchModel) -> None:
        name, version, [flow] = fetch.spec.name, fetch.manifest.version, fetch.inflows
        while self.orders.get(version) is fetch and (held := self.find(name, version)) and len(held.ready) < BLOCKS:
            await asyncio.sleep(BLOCK_BYTES / RATE)
            sender = self.fabric.get(flow.upstream.id)
            if sender is None or sender.is_stopped or not sender.has(version, len(held.ready)):
                self.fetches[flow.ticket] = fetch
                self.tell_lost(fetch, f"{flow.upstream.id} is gone")
                await self.read_alone(fetch, ALONE_SECONDS)
                return
            self.take(name, version, flow.upstream.id)

    def take(self, name: str, version: str, sender: str) -> None:
        """One block more of what is being fetched."""
        held = self.find(name, version)
        if held is None or len(held.ready) == BLOCKS:
            return
        self.brought.append((sender, len(held.ready)))
        self.hold(name, version, [*held.ready, len(held.ready)])
        if len(held.ready) + 1 == BLOCKS:
            self.fetched.append(name)
            self.arrived(name, version, version, None)

    def tell_lost(self, fetch: FetchModel, error: str) -> None:
        ticket, at = fetch.inflows[0].ticket, CLOCK.wall()
        event = Transfer(plan_id=fetch.plan_id, node=self.id, state="broken", at=at, ticket=ticket, error=error)
        self.bus.publish(TRANSFER, event, plan=fetch.plan_id)

    async def release(self, release: ReleaseModel, context: Context) -> Ack:
        if self.find(release.model, release.version) is not None:
            self.released.append(release)
        key = release.model, release.version
        self.holdings = [one for one in self.holdings if (one.model, one.version) != key]
        self.membership.changed()
        return Ack()


@dataclass
class Work:
    request: Submit
    prefill_left: float
    made: int = 0


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
    """A worker whose engine makes one token a step for each request, after its prompt was prefilled."""

    def __init__(self, bus: Bus, id: str, host: str, fabric: dict[str, Node], faults: Faults | None = None) -> None:
        super().__init__(bus, fabric)
        self.id = id
        self.faults = faults or Faults()
        self.lifecycle = Lifecycle()
        self.order: Load | None = None
        self.running: dict[str, Work] = {}
        self.admitted: list[Admit] = []
        self.cancelled: list[str] = []
        self.received: list[int] = []  # blocks, as often as they came
        self.lanes: dict[tuple[str, int], set[int]] = {}  # of a plan's block that came
        self.traffic: list[PeerTraffic] | None = []  # what serving moves
        self.first_token_told = False
        self.helped: set[str] = set()
        self.named: dict[str, set[str]] = {}  # whom to help, by plan
        self.helps = asyncio.Event()
        self.taken: list[str] = []  # requests that came from workers that loaded
        self.stages = FakeStages(self)
        self.step = 0
        self.history = TokenHistory()
        self.work = asyncio.Event()
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
            Endpoint(ADMIT, self.admit, holes),
            Endpoint(RUNNING, self.tell_running, holes),
            Endpoint(REPLAY, self.replay, holes),
            Endpoint(ABORT, self.abort, holes),
            Endpoint(HELP, self.help, holes),
            Endpoint(PIPELINE, self.stages.form, holes),
        ]
        cancels = await self.bus.subscribe(CANCEL_WORK, id=self.id)
        overs = await self.bus.subscribe(PIPELINE_OVER, id=self.id)
        await self.bus.serve(ServiceInfo("worker", self.id, "a fake worker"), endpoints)

        async def hear_cancels() -> None:
            async for received in cancels:
                self.cancel(received.message)

        async def hear_overs() -> None:
            async for received in overs:
                self.stages.over(received.message)

        async with self.tasks as group:
            group.create_task(self.membership.run())
            group.create_task(hear_overs())
            group.create_task(self.compute())
            group.create_task(self.pull())
            group.create_task(hear_cancels())

    @property
    def state(self) -> WorkerState:
        return self.lifecycle.state.value

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
            load=self.engine_load(),
            traffic=self.traffic,
            helping=sorted(self.helped),
            live_layers=len(ready) - 1 if self.state == "live" and {0, 1} <= self.lifecycle.ready else 0,
            kv_blocks=64,
            pipeline=self.stages.id,
            stage=self.stages.span,
        )

    def engine_load(self) -> EngineLoad:
        prefilling = [one for one in self.running.values() if one.prefill_left > 0]
        return EngineLoad(
            waiting_requests=len(prefilling),
            waiting_tokens=round(sum(one.prefill_left for one in prefilling)),
            running_requests=len(self.running) - len(prefilling),
            max_requests=SLOTS,
            kv_blocks_used=len(self.running),
            kv_blocks_total=64,
            kv_block_tokens=16,
            prefill_tokens_per_second=PREFILL_RATE if self.admitted else None,
        )

    def give_up(self) -> None:
        """It was declared dead."""
        self.lifecycle = Lifecycle()
        self.forget()

    def release(self) -> None:
        self.lifecycle.release()
        self.give_back(f"{self.id} gave up loading")
        self.forget()

    def give_back(self, reason: str) -> None:
        """Of one that was live: somebody else has to make these."""
        for one in self.running.values():
            lost = RequestLost(request_id=one.request.request_id, reason=reason)
            self.bus.publish(TOKENS, lost, gateway=one.request.gateway)
        if self.running:
            self.bus.publish(ENDED, RequestsEnded(worker=self.id, request_ids=list(self.running)), worker=self.id)
        self.running.clear()
        self.history.drop_running()

    async def help(self, help: Help, context: Context) -> Ack:
        self.check_epoch(help.epoch)
        if self.state != "serving" or self.order is None or self.order.manifest.version != help.version:
            raise Refusal(409, f"the worker is {self.state}")
        self.helped -= self.named.pop(help.plan_id, set())
        self.named[help.plan_id] = {target.id for target in help.targets}
        self.helped |= self.named[help.plan_id]
        self.helps.set()
        self.membership.changed()
        return Ack()

    def begin_to_help(self, target: str) -> None:
        self.helped.add(target)
        self.helps.set()

    async def pull(self) -> None:
        """While nothing here waits to be prefilled take what a live worker has not begun."""
        while True:
            await self.helps.wait()
            await asyncio.sleep(10 * STEP_SECONDS)
            if not self.helped:
                self.helps.clear()
            for id in sorted(self.helped):
                target = self.fabric.get(id)
                if not isinstance(target, FakeWorker) or not target.may_be_helped:
                    self.helped.discard(id)
                    self.membership.changed()
                elif target.is_stopped:
                    continue
                elif self.state == "serving" and not any(one.prefill_left > 0 for one in self.running.values()):
                    self.take(target)

    @property
    def may_be_helped(self) -> bool:
        return self.state in ("loading", "live") or self.stages.shares

    def take(self, target: "FakeWorker") -> None:
        one = next(iter(target.running.values()), None)
        if one is None or len(self.running) >= SLOTS or one.request.request_id in self.running:
            return
        id = one.request.request_id
        del target.running[id]
        moved = RequestsMoved(worker=self.id, previous=target.id, request_ids=[id])
        target.bus.publish(MOVED, moved, previous=target.id)
        self.taken.append(id)
        self.running[id] = one
        row = Tokens(request_id=id, index=one.made, token_ids=[])
        self.history.record(row)
        self.send_rows([row], one.request.gateway)
        self.work.set()
        self.membership.changed()

    def forget(self) -> None:
        self.order = None
        self.running.clear()
        self.history.drop_running()
        self.first_token_told = False
        self.helped.clear()
        self.stages.forget()
        self.named.clear()
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
        """Bytes come in along a flow; to nobody who is ending."""
        start(self, self.receive(ticket))

    def inflow(self, ticket: int) -> Inflow | None:
        """As it was last commanded; None where it ended."""
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
        self.helped.clear()
        self.membership.changed()
        self.finish_draining()
        return Ack()

    def finish_draining(self) -> None:
        if self.state == "draining" and not self.running:
            self.tell("spare")
            self.release()

    async def abort(self, abort: Abort, context: Context) -> Ack:
        self.aborts.append(abort)
        if self.lifecycle.aborts(abort.plan_id):
            self.release()
        return Ack()

    async def admit(self, admit: Admit, context: Context) -> Ack:
        if not self.lifecycle.accepts_requests(admit.request.model):
            raise Refusal(409, f"the worker is {self.state}")
        if self.faults.refuse_admissions > 0:
            self.faults.refuse_admissions -= 1
            raise Refusal(429, "full", retry_after_ms=10)
        request = admit.request
        assert self.order is not None
        if request.version not in (None, self.order.manifest.version):
            raise Refusal(409, "this worker serves another version")
        if request.request_id in self.running:
            return Ack()
        self.admitted.append(admit)
        self.running[request.request_id] = Work(request, len(request.prompt) + len(request.generated))
        self.running[request.request_id].made = len(request.generated)
        self.work.set()
        self.membership.changed()
        return Ack()

    async def replay(self, replay: Replay, context: Context) -> Ack:
        row = self.history.since(replay.request_id, replay.index)
        if row is None and replay.request_id not in self.running:
            raise Refusal(404, f"request {replay.request_id} has no token {replay.index} here")
        if row is not None:
            self.send_rows([row], replay.gateway)
        return Ack()

    def send_rows(self, rows: list[Tokens], gateway: str) -> None:
        version = None if self.order is None else self.order.manifest.version
        self.bus.publish(
            TOKENS, TokenFrame(worker=self.id, step=self.step, rows=rows, version=version), gateway=gateway
        )

    async def tell_running(self, ask: AskRunning, context: Context) -> RunningRequests:
        requests = [one.request for one in self.running.values()]
        return RunningRequests(
            requests=[Running(request_id=r.request_id, gateway=r.gateway, tokens=r.max_tokens + 1) for r in requests]
        )

    def cancel(self, cancel: Cancel) -> None:
        self.cancelled.append(cancel.request_id)
        stopped = self.running.pop(cancel.request_id, None)
        if stopped is not None:
            row = Tokens(request_id=cancel.request_id, index=stopped.made, token_ids=[], finish_reason="cancelled")
            self.history.record(row)
            self.send_rows([row], stopped.request.gateway)
            self.ended([cancel.request_id])

    def ended(self, request_ids: list[str]) -> None:
        self.bus.publish(ENDED, RequestsEnded(worker=self.id, request_ids=request_ids), worker=self.id)
        self.membership.changed()
        self.finish_draining()

    async def compute(self) -> None:
        while True:
            await self.work.wait()
            await asyncio.sleep(STEP_SECONDS)
            if self.stages.leads and not self.stages.is_whole():
                self.stages.end("a stage is gone")
            if self.state != "live" or self.lifecycle.whole or self.stages.leads:
                self.one_step()
            if not self.running:
                self.work.clear()

    def one_step(self) -> None:
        self.step += 1
        budget = PREFILL_RATE * STEP_SECONDS
        frames: dict[str, list[Tokens]] = {}
        done = []
        for one in list(self.running.values()):
            taken = min(budget, one.prefill_left)
            one.prefill_left, budget = one.prefill_left - taken, budget - taken
            if one.prefill_left > 0:
                continue
            one.made += 1
            last = one.made >= one.request.max_tokens
            row = Tokens(
                request_id=one.request.request_id,
                index=one.made - 1,
                token_ids=[one.made],
                finish_reason="length" if last else None,
            )
            frames.setdefault(one.request.gateway, []).append(row)
            if last:
                done.append(one.request.request_id)
        for gateway, rows in frames.items():
            self.send_rows(rows, gateway)
            for row in rows:
                self.history.record(row)
        if frames and not self.first_token_told:
            self.first_token_told = True
            self.tell("first_token")
        for id in done:
            del self.running[id]
        if done:
            self.ended(done)
