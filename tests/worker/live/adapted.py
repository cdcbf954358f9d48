"""Adapters under virtual time: a registry that knows two, and hosts that send them when they are told to."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from livescale.load.make_adapter import make_adapter
from livescale.services.host.adapter import open_adapter
from livescale.services.worker.engine.contract import AdapterData, FetchAdapter
from livescale.shared.bus.contract import Ack, Bus, Context, Endpoint, ServiceInfo
from livescale.shared.links.contract import LinkError
from livescale.shared.messages.membership import Member
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.parameters import DType
from livescale.shared.messages.registry import AdapterContent, AskAdapter, AskSnapshot, Snapshot
from livescale.shared.messages.requests import AdapterUse
from livescale.shared.messages.transfers import Send
from livescale.shared.subjects import ADAPTER, SEND, SNAPSHOT
from livescale.shared.transfer.chunks import Chunk
from livescale.shared.transfer.flow_end import FlowEnd, ModelCopy
from livescale.shared.transfer.sender import send_chunks
from tests.checkpoints import tiny_checkpoint
from tests.shared.transfer.virtual_link import VirtualLink
from tests.worker.live.engines import EngineKind, Undisturbed, parameters
from tests.worker.live.pool import WorkerPool
from tests.worker.live.virtual_ranks import Meetings, RankRunner, virtual_loop

NAMES = ("mine", "other")
HOSTS = ("h1", "h2")
RANK, ALPHA = 8, 12.0


@cache
def adapters(dtype: DType, ranks: int = 1) -> dict[str, AdapterData]:
    """Adapters of the model that `parameters` has, by their names."""
    config, made = parameters(dtype, ranks)[0].config, dict[str, AdapterData]()
    for seed, name in enumerate(NAMES):
        with TemporaryDirectory() as directory:
            model = tiny_checkpoint("llama" if ranks == 1 else "qwen2")
            opened = open_adapter(make_adapter(Path(directory), model, RANK, ALPHA, seed=seed), config, dtype)
            block = memoryview(bytearray(opened.size_bytes))
            made[name] = AdapterData(opened.manifest([opened.read_block(0, block)]), block)
    return made


def content(adapter: AdapterData) -> memoryview:
    assert isinstance(adapter.data, memoryview)
    return adapter.data


@cache
def _undisturbed(dtype: DType, ranks: int) -> Undisturbed:
    alone = Undisturbed(dtype, ranks)
    for adapter in adapters(dtype, ranks).values():
        alone.add_adapter(adapter.manifest, content(adapter))
    return alone


class AdaptedKind(EngineKind):
    """An engine that computes, and whose requests may use adapters."""

    def undisturbed(self) -> Undisturbed:
        return _undisturbed(self.dtype, self.ranks)

    def use(self, number: int) -> AdapterUse | None:
        """What request `number` uses: each adapter in turn, and none."""
        name = (*NAMES, None)[number % 3]
        return None if name is None else self.named(name)

    def named(self, name: str) -> AdapterUse:
        return AdapterUse(name=name, version=adapters(self.dtype, self.ranks)[name].manifest.version)


def adapted_kind(dtype: DType = "float32", ranks: int = 1) -> AdaptedKind:
    """Engines with a thread each, which may wait for an adapter."""
    return AdaptedKind(dtype, ranks, make_runner=lambda told: RankRunner(told, Meetings(), 1))


KINDS = [adapted_kind("float32"), adapted_kind("bfloat16")]


@dataclass
class AdapterHosts:
    """Hosts that have both adapters. While they are not `open` they take orders and send nothing. `orders` names the
    host of each order that it began to carry out."""

    pool: WorkerPool
    kind: AdaptedKind

    def __post_init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.orders: list[str] = []
        self._adapters = adapters(self.kind.dtype, self.kind.ranks)
        self._buses: dict[str, Bus] = {}
        self._sending: dict[str, list[asyncio.Task[None]]] = {host: [] for host in HOSTS}

    async def start(self) -> None:
        """Answer workers, whose threads wait for adapters in virtual time from now on."""
        told = [Endpoint(SNAPSHOT, self._snapshot), Endpoint(ADAPTER, self._adapter)]
        await self.pool.broker.connect().serve(ServiceInfo("registry", "registry-1", "knows adapters"), told)
        for host in HOSTS:
            self._buses[host] = self.pool.broker.connect()
            send = Endpoint(SEND, partial(self._send, host), {"id": host})
            await self._buses[host].serve(ServiceInfo("host", host, "sends adapters"), [send])
        for member in self.pool.members.values():
            fetch = member.runner.fetch_adapter
            if self.kind.ranks == 1 and fetch is not None:
                member.runner.fetch_adapter = partial(_waited, fetch)

    async def bring(self, *workers: str) -> None:
        """Have both adapters at these workers."""
        for worker in workers:
            for adapter in self._adapters.values():
                await self.pool.members[worker].runner.add_adapter(adapter)

    async def ordered(self, count: int = 1) -> str:
        """Wait for so many orders. Returns which host got the last of them."""
        await self.pool.until(lambda: len(self.orders) >= count)
        return self.orders[count - 1]

    async def kill(self, host: str, *, is_noticed: bool = True) -> None:
        """Kill a host. What it was sending breaks off, or where the link notices nothing, never comes."""
        await self._buses.pop(host).close()
        self.pool.faults.gone.add(host.encode())
        for task in self._sending[host]:
            task.cancel()
        await asyncio.wait(self._sending[host] or [asyncio.create_task(asyncio.sleep(0))])
        for (sender, *_), message in self.pool.mail.items():
            if is_noticed and sender == host.encode() and not message.done():
                message.set_exception(LinkError("the other end is gone"))
                message.exception()

    async def _snapshot(self, message: AskSnapshot, context: Context) -> Snapshot:
        """Deaths of hosts are not known yet."""
        members = [
            Member(service="host", id=host, pid=1, host=host, epoch=1, lease="alive", address=host.encode())
            for host in HOSTS
        ]
        return Snapshot(members=members)

    async def _adapter(self, ask: AskAdapter, context: Context) -> AdapterContent:
        found = ((name, one.manifest) for name, one in self._adapters.items() if one.manifest.version == ask.version)
        (name, manifest) = next(found)
        return AdapterContent(spec=ModelSpec(name=name, path="/adapters", base="m"), manifest=manifest)

    async def _send(self, host: str, command: Send, context: Context) -> Ack:
        (adapter,) = [one for one in self._adapters.values() if one.manifest.version == command.version]
        (outflow,) = command.outflows
        copy = ModelCopy(host, command.chunk_bytes, [content(adapter)])
        end = FlowEnd(copy, outflow.ticket, outflow.downstream, command.secret)
        self._sending[host].append(self.pool.tasks.create_task(self._send_all(host, end)))
        return Ack()

    async def _send_all(self, host: str, end: FlowEnd) -> None:
        async def here(chunk: Chunk) -> None:
            if chunk.number == 0:
                self.orders.append(host)
            await self.open.wait()

        await send_chunks(VirtualLink(self.pool.mail, host.encode()), end, here)


async def _waited(fetch: FetchAdapter, version: str) -> AdapterData:
    """Fetch an adapter for a thread, which waits: the clock goes on meanwhile."""
    virtual_loop().in_threads -= 1
    try:
        return await fetch(version)
    finally:
        virtual_loop().in_threads += 1


async def hosts_of(pool: WorkerPool, resident_at: Sequence[str] = ()) -> AdapterHosts:
    """Hosts that answer the workers of a pool, some of which have the adapters already."""
    assert isinstance(pool.kind, AdaptedKind)
    hosts = AdapterHosts(pool, pool.kind)
    await hosts.start()
    await hosts.bring(*resident_at)
    return hosts
