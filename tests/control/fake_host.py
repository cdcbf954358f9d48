"""A host that speaks the contract: its disk and its cache take virtual time and hold nothing."""

import asyncio

from livescale.shared.bus.contract import Ack, Bus, Context, Endpoint, Refusal, ServiceInfo
from livescale.shared.messages.membership import Holding, HostReport
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import CheckModel, FetchModel, ModelChecked, ModelRead, ReadModel, ReleaseModel
from livescale.shared.messages.transfers import (
    Send,
    Transfer,
)
from livescale.shared.process.membership import Membership
from livescale.shared.subjects import (
    CHECK_MODEL,
    FETCH_MODEL,
    MODEL_READ,
    READ_MODEL,
    RELEASE_MODEL,
    SEND,
    TRANSFER,
)
from tests.control.fakes import (
    ALONE_SECONDS,
    BLOCK_BYTES,
    BLOCKS,
    CLOCK,
    RATE,
    SIZE,
    Node,
    manifest,
    start,
)


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
        self.brought: list[tuple[str, int]] = []  # the sender and the block
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
        """Hold so many blocks of this version, in place of what the host had."""
        others = [one for one in self.holdings if (one.model, one.version) != (name, version)]
        if sum(one.size_bytes for one in others) + SIZE > self.limit_bytes:
            raise Refusal(409, "the cache is full")
        self.holdings = [*others, Holding(model=name, version=version, ready=ready, total=BLOCKS, size_bytes=SIZE)]
        self.membership.changed()

    async def read_blocks(self, name: str, shown: str, version: str, broken: bool) -> None:
        """Read all blocks from disk. `shown` is the version as far as it is known."""
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
        """Read what is missing, where the flow brings nothing more and no other copy is known."""
        await asyncio.sleep(seconds)
        name, version = fetch.spec.name, fetch.manifest.version
        while self.orders.get(version) is fetch and (held := self.find(name, version)) and len(held.ready) < BLOCKS:
            if seconds and not self.fetches.keys() & {flow.ticket for flow in fetch.inflows}:
                return  # it comes, or the process that lost it looks for another way
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
        """Take one more block of what is being fetched."""
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
