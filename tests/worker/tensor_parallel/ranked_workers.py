"""Instances of two workers each: one that serves, and one whose blocks come when a test says so."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from msgspec.structs import replace

from livescale.shared.messages.live import Help
from livescale.shared.messages.parameters import DType
from livescale.shared.messages.requests import Sampling, Submit
from livescale.shared.messages.transfers import Drain, Inflow, LiveMode, Serve
from livescale.shared.subjects import DRAIN, HELP, LOAD, SERVE
from livescale.shared.transfer.flow_end import FlowEnd, ModelCopy
from tests.samples import sample
from tests.worker.fleet import CHUNK_BYTES, Fleet, fleet
from tests.worker.requests import random_prompt, submit

SOURCE, TARGET = ("s-0", "s-1"), ("t-0", "t-1")
RANKS = 2


@dataclass
class RankedWorkers:
    """Workers of two instances. `given` counts the blocks that each worker was sent; the first two are the embedding
    and the first layer."""

    fleet: Fleet
    given: dict[str, int] = field(default_factory=dict)
    tickets: int = 0

    @property
    def blocks(self) -> int:
        return len(self.fleet.manifest.blocks) // RANKS

    @property
    def layers(self) -> int:
        return self.blocks - 2

    def count(self, worker: str, what: str) -> float:
        return sample(self.fleet.telemetry[worker], f"livescale_worker_{what}_total")

    def ready(self, worker: str) -> int:
        """Return the blocks that a worker has laid out."""
        holding = self.fleet.reports[worker].holding if worker in self.fleet.reports else None
        return 0 if holding is None else len(holding.ready)

    async def give(self, ranks: Sequence[str], *blocks: int, mode: LiveMode = "zigzag") -> None:
        """Have these receive their blocks up to this number, by rank."""
        for rank, worker in enumerate(ranks):
            new = list(range(self.given.get(worker, 0), blocks[rank]))
            if new:
                self.given[worker] = blocks[rank]
                await self.send(ranks, rank, new, mode)

    async def send(self, ranks: Sequence[str], rank: int, blocks: list[int], mode: LiveMode) -> None:
        """Have one of them receive these blocks."""
        worker = ranks[rank]
        self.tickets += 1
        inflow = Inflow(ticket=self.tickets, upstream=self.fleet.me, blocks=blocks)
        own = {"instance": ranks[0], "rank": rank, "ranks": list(ranks), "live": mode}
        shard = self.fleet.manifest.of_shard(rank)
        command = replace(self.fleet.command(worker, inflow, plan=ranks[0]), manifest=shard, **own)
        await self.fleet.bus.call(LOAD, command, timeout=60, id=worker)
        memory = self.fleet.memory[rank * self.blocks : (rank + 1) * self.blocks]
        end = FlowEnd(ModelCopy("source", CHUNK_BYTES, memory), self.tickets, self.fleet.node(worker))
        self.fleet.tasks.create_task(self.fleet._feed(end))

    async def have(self, ranks: Sequence[str], *blocks: int, mode: LiveMode = "zigzag") -> None:
        """Give blocks, and wait until all are laid out."""
        await self.give(ranks, *blocks, mode=mode)
        await self.fleet.until(lambda: [self.ready(worker) for worker in ranks] == list(blocks))

    async def serve(self, ranks: Sequence[str]) -> None:
        for worker in ranks:
            command = Serve(plan_id=ranks[0], instance=ranks[0], epoch=1)
            await self.fleet.bus.call(SERVE, command, timeout=60, id=worker)
        await self.fleet.until(lambda: all(self.fleet.state(worker) == "serving" for worker in ranks))

    async def drain(self) -> None:
        """Have the source end what it has, and be spare."""
        for worker in SOURCE:
            await self.fleet.bus.call(DRAIN, Drain(instance=SOURCE[0], epoch=1), timeout=60, id=worker)

    async def live(self, layers: int) -> None:
        """Have the target go live with so many layers."""
        await self.have(TARGET, layers + 1, layers + 1)
        await self.fleet.until(lambda: self.fleet.state("t-0") == "live")

    async def help(self, *targets: str) -> None:
        """Have the source take requests over from these targets."""
        nodes = [self.fleet.node(target) for target in targets]
        command = Help(plan_id="live", model="m", version=self.fleet.manifest.version, targets=nodes, epoch=1)
        await self.fleet.bus.call(HELP, command, timeout=60, id="s-0")

    async def ran(self, layers: float) -> None:
        """So many layers of all its requests together were run by the target."""
        await self.fleet.until(lambda: self.count("t-0", "live_layers") >= layers)

    async def undisturbed(self, *requests: Submit) -> dict[str, list[int]]:
        """The tokens that the serving instance generates for these requests without any disturbance."""
        for one in requests:
            await self.fleet.admit("s-0", replace(one, request_id=f"alone {one.request_id}"))
        return {one.request_id: await self.fleet.finished(f"alone {one.request_id}") for one in requests}

    async def finished(self, *requests: Submit) -> dict[str, list[int]]:
        return {one.request_id: await self.fleet.finished(one.request_id) for one in requests}


def wanted(number: int, tokens: int = 12) -> Submit:
    sampling = Sampling(temperature=0.9 if number % 2 else 0.0, seed=number)
    return submit(f"r{number}", random_prompt(number, 120 + 9 * number), max_tokens=tokens, sampling=sampling)


@asynccontextmanager
async def ranked_workers(dtype: DType = "float32", spare: Sequence[str] = TARGET) -> AsyncIterator[RankedWorkers]:
    """Start a source that serves, and a target whose workers are spare."""
    async with fleet(*SOURCE, *spare, dtype=dtype, shards=RANKS) as made:
        ranked = RankedWorkers(made)
        await ranked.have(SOURCE, ranked.blocks, ranked.blocks, mode="off")
        await ranked.serve(SOURCE)
        yield ranked
