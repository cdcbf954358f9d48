"""A virtual cluster in which engines and links note what they do, and links may damage what they carry."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from random import Random

from livescale.load.simulate.cluster import VirtualCluster
from livescale.load.simulate.seeds.history import Delivered, History, LaidOut, Ran
from livescale.services.worker.engine.contract import LayerwiseRun, StageResult
from livescale.services.worker.engine.modelled import ModelledRunner
from livescale.services.worker.scheduling.batch import Batch, Chosen, ScheduledChunk
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.bus.addressing import fill_wildcards
from livescale.shared.bus.codec import decode
from livescale.shared.links.contract import View
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.transfers import Load
from livescale.shared.model.latency import Latency, find_latency
from livescale.shared.runtime.clock import Clock
from livescale.shared.simulation.listeners import Listener
from livescale.shared.simulation.modelled_links import Content, Mailbox, ModelledNetwork, Way
from livescale.shared.simulation.sparse_memory import SparseContent
from livescale.shared.simulation.virtual_time import machine_time
from livescale.shared.subjects import LOAD
from livescale.shared.transfer.arrivals import checksum

DAMAGED = bytes(byte ^ 0xFF for byte in range(256))
LEAST_DAMAGED_BYTES = 256  # smaller messages are of protocols, whose links check them


class WatchedRunner(ModelledRunner):
    """An engine that notes which blocks it is given and which it runs. Every load is another engine."""

    def __init__(self, worker: str, settings: WorkerSettings, latency: Latency, clock: Clock, seen: History) -> None:
        memory = settings.kv_bytes, settings.block_size, latency, settings.engine_speed, clock, settings.host_kv_bytes
        super().__init__(*memory)
        self._worker = worker
        self._loads = 0
        self._seen = seen
        self._ran: set[tuple[int, int]] = set()
        self._blocks: Sequence[int] = ()

    @property
    def _engine(self) -> str:
        return f"{self._worker}, load {self._loads}"

    async def load(self, manifest: Manifest, max_model_len: int) -> int:
        self._loads += 1
        self._ran.clear()
        self._blocks = [block.checksum for block in manifest.blocks]
        return await super().load(manifest, max_model_len)

    async def add_block(self, index: int, buffer: View) -> None:
        self._seen.engines.append(LaidOut(self._engine, index, checksum(buffer) == self._blocks[index]))
        await super().add_block(index, buffer)

    async def step(self, batch: Batch) -> Chosen:
        self._run(range(len(self._blocks)))
        self._check_owners(batch.chunks)
        return await super().step(batch)

    async def run_blocks(self, blocks: range, chunks: Sequence[ScheduledChunk], activation: memoryview) -> StageResult:
        self._run(blocks)
        return await super().run_blocks(blocks, chunks, activation)

    async def run_layer(self, partials: Sequence[LayerwiseRun]) -> None:
        layer = partials[0].done
        self._run(range(layer + 1 if layer else 0, layer + 2))
        await super().run_layer(partials)

    def _run(self, blocks: range) -> None:
        if (blocks.start, blocks.stop) not in self._ran:
            self._ran.add((blocks.start, blocks.stop))
            self._seen.engines.append(Ran(self._engine, blocks.start, blocks.stop, machine_time()))

    def _check_owners(self, chunks: Iterable[ScheduledChunk]) -> None:
        owned = sorted({(chunk.blocks.start, chunk.blocks.stop, chunk.request_id) for chunk in chunks})
        for (_, stop, one), (start, _, other) in pairwise(owned):
            if start < stop and one != other:
                self._seen.overlaps.append(f"{self._engine}: {one} and {other} have KV block {start}")


class WatchedMailbox(Mailbox):
    """A mailbox of the local bus that notes each message as it arrives."""

    def __init__(self, way: Way, network: "WatchedNetwork") -> None:
        super().__init__(way)
        self._network = network
        self._sender, self._receiver, self._channel = way[0].decode(), way[1].decode(), way[2]

    def put(self, tag: int, data: Content) -> None:
        came = Delivered(machine_time(), self._sender, self._receiver, len(data), self._channel)
        self._network.seen.delivered.append(came)
        super().put(tag, self._network.carried(data))


class WatchedNetwork(ModelledNetwork):
    """A network whose links damage messages: the largest of the shares `damaging`."""

    def __init__(self, delay_seconds: float, seen: History, seed: int) -> None:
        super().__init__(delay_seconds)
        self.seen = seen
        self.damaging: list[float] = []
        self._chance = Random(f"damage {seed}")

    def make_mailbox(self, way: Way) -> Mailbox:
        return WatchedMailbox(way, self)

    def carried(self, data: Content) -> Content:
        """Return what a message is when it arrives, decoded where it travels as bytes."""
        share = max(self.damaging, default=0.0)
        if not share or len(data) < LEAST_DAMAGED_BYTES or self._chance.random() >= share:
            return data
        if isinstance(data, SparseContent):
            return data.damaged()
        return bytes(data).translate(DAMAGED)


class WatchedCluster(VirtualCluster):
    """A cluster whose `seen` is a history of what its engines and links do."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seen = History()
        self.network = WatchedNetwork(self.settings.message_seconds, self.seen, self.settings.seed)
        self.links.network = self.network
        self._latency = find_latency(self.settings.worker.engine_profile)
        self.broker.watchers.add(Listener(fill_wildcards(LOAD.pattern, {}), "", self._note_load))

    def _note_load(self, subject: str, data: bytes, *rest: object) -> None:
        command = decode(Load, data, json=False)
        self.seen.loads.add((subject.split(".")[1], command.epoch, command.plan_id))

    def make_runner(self, told: WorkerSettings) -> Callable[[Clock], WatchedRunner]:
        life = f"{told.id} of {machine_time():.3f} s"
        return lambda clock: WatchedRunner(life, told, self._latency, clock, self.seen)
