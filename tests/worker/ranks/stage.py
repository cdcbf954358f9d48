"""Instances of two workers each: one that serves, and one whose blocks come when a test says so."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from msgspec.structs import replace

from livescale.shared.messages.live import Help
from livescale.shared.messages.parameters import DType
from livescale.shared.messages.requests import Sampling, Submit
from livescale.shared.messages.transfers import Inflow, LiveMode, Serve
from livescale.shared.subjects import HELP, LOAD, SERVE
from livescale.shared.transfer.flow_end import FlowEnd, ModelCopy
from tests.worker.fleet import CHUNK_BYTES, Fleet, fleet
from tests.worker.serving import random_prompt, submit

SOURCE, TARGET = ("s-0", "s-1"), ("t-0", "t-1")
RANKS = 2


@dataclass
class RankStage:
    """`given`: how many blocks each worker was sent, the embedding and the first layer being the first two."""

    made: Fleet
    given: dict[str, int] = field(default_factory=dict)
    tickets: int = 0

    @property
    def blocks(self) -> int:
        return len(self.made.manifest.blocks) // RANKS

    @property
    def layers(self) -> int:
        return self.blocks - 2

    def count(self, worker: str, what: str) -> float:
        return self.made.telemetry[worker].registry.get_sample_value(f"livescale_worker_{what}_total") or 0.0

    def ready(self, worker: str) -> int:
        """Blocks that it has laid out."""
        holding = self.made.reports[worker].holding if worker in self.made.reports else None
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
        inflow = Inflow(ticket=self.tickets, upstream=self.made.me, blocks=blocks)
        own = {"instance": ranks[0], "rank": rank, "ranks": list(ranks), "live": mode}
        shard = self.made.manifest.of_shard(rank)
        command = replace(self.made.command(worker, inflow, plan=ranks[0]), manifest=shard, **own)
        await self.made.bus.call(LOAD, command, timeout=5, id=worker)
        memory = self.made.memory[rank * self.blocks : (rank + 1) * self.blocks]
        end = FlowEnd(ModelCopy("source", CHUNK_BYTES, memory), self.tickets, self.made.node(worker))
        self.made.tasks.create_task(self.made._feed(end))

    async def have(self, ranks: Sequence[str], *blocks: int, mode: LiveMode = "zigzag") -> None:
        """`give`, and wait until all is laid out."""
        await self.give(ranks, *blocks, mode=mode)
        await self.made.until(lambda: [self.ready(worker) for worker in ranks] == list(blocks))

    async def serve(self, ranks: Sequence[str]) -> None:
        for worker in ranks:
            command = Serve(plan_id=ranks[0], instance=ranks[0], epoch=1)
            await self.made.bus.call(SERVE, command, timeout=5, id=worker)
        await self.made.until(lambda: all(self.made.state(worker) == "serving" for worker in ranks))

    async def live(self, layers: int) -> None:
        """The target is live, and has so many layers."""
        await self.have(TARGET, layers + 1, layers + 1)
        await self.made.until(lambda: self.made.state("t-0") == "live")

    async def help(self, *targets: str) -> None:
        """The source takes requests over from these."""
        nodes = [self.made.node(target) for target in targets]
        command = Help(plan_id="live", model="m", version=self.made.manifest.version, targets=nodes, epoch=1)
        await self.made.bus.call(HELP, command, timeout=5, id="s-0")

    async def ran(self, layers: float) -> None:
        """So many layers of all its requests together were run by the target."""
        await self.made.until(lambda: self.count("t-0", "live_layers") >= layers)

    async def undisturbed(self, *requests: Submit) -> dict[str, list[int]]:
        """What the instance that serves makes of them, if nobody interferes."""
        for one in requests:
            await self.made.admit("s-0", replace(one, request_id=f"alone {one.request_id}"))
        return {one.request_id: await self.made.finished(f"alone {one.request_id}") for one in requests}

    async def finished(self, *requests: Submit) -> dict[str, list[int]]:
        return {one.request_id: await self.made.finished(one.request_id) for one in requests}


def wanted(number: int, tokens: int = 12) -> Submit:
    sampling = Sampling(temperature=0.9 if number % 2 else 0.0, seed=number)
    return submit(f"r{number}", random_prompt(number, 120 + 9 * number), max_tokens=tokens, sampling=sampling)


@asynccontextmanager
async def rank_stage(dtype: DType = "float32", spare: Sequence[str] = TARGET) -> AsyncIterator[RankStage]:
    """The source serves; those of the target are spare."""
    async with fleet(*SOURCE, *spare, dtype=dtype, shards=RANKS) as made:
        stage = RankStage(made)
        await stage.have(SOURCE, stage.blocks, stage.blocks, mode="off")
        await stage.serve(SOURCE)
        yield stage
