"""An execution pipeline of instances of two workers each, beside one that serves."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from msgspec.structs import replace

from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.messages.model_parallel import Pipeline, Stage
from livescale.shared.messages.parameters import DType
from livescale.shared.messages.requests import Submit
from livescale.shared.subjects import DEATH, PIPELINE
from tests.worker.tensor_parallel.ranked_workers import RANKS, RankedWorkers, ranked_workers

Cut = Sequence[tuple[str, int]]  # which instance runs the blocks up to which one, in their order
PAIR: Cut = (("a", 2), ("b", 5))
THREE: Cut = (("a", 2), ("b", 4), ("c", 5))


@dataclass
class RankedPipeline:
    """A pipeline of instances with two ranks: instance `a` has the workers `a-0` and `a-1`, and so on. `cut` says which
    instance runs which blocks."""

    ranked: RankedWorkers
    cut: Cut

    @property
    def names(self) -> list[str]:
        return sorted({name for name, _ in self.cut})

    def held(self, name: str) -> list[int]:
        """What an instance runs, and with the head the embedding, which it is tied to."""
        starts = [0, *(stop for _, stop in self.cut)]
        spans = zip(starts, self.cut, strict=False)
        own = {block for first, (one, stop) in spans if one == name for block in range(first, stop)}
        return sorted(own | {0} if self.cut[-1][0] == name else own)

    async def load(self, name: str, rank: int, blocks: list[int]) -> None:
        """Load blocks, and wait until they are laid out."""
        worker, before = f"{name}-{rank}", self.ranked.ready(f"{name}-{rank}")
        await self.ranked.send(team(name), rank, blocks, "pipeline")
        await self.ranked.fleet.until(lambda: self.ranked.ready(worker) == before + len(blocks))

    async def finish(self, name: str, *ranks: int) -> None:
        """Give these ranks the rest of the blocks."""
        left = sorted(set(range(self.ranked.blocks)) - set(self.held(name)))
        for rank in ranks:
            await self.load(name, rank, left)

    async def form(self) -> None:
        """Form the pipeline as a planner does: the leader last, each once its ranks have what they run."""
        leader = self.cut[0][0]
        for name in sorted(self.names, key=lambda one: (one == leader, one)):
            await self.ranked.fleet.bus.call(PIPELINE, self._told(name), timeout=60, id=f"{name}-0")
        await self.ranked.fleet.until(lambda: self.ranked.fleet.state(f"{leader}-0") == "live")

    def _told(self, name: str) -> Pipeline:
        starts = [0, *(stop for _, stop in self.cut)]
        spans = zip(starts, self.cut, strict=False)
        made = self.ranked.fleet
        return Pipeline(
            id="p",
            plan_id=f"{name}-0",
            model="m",
            version=made.manifest.version,
            stages=[Stage(node=made.node(f"{one}-0"), first=first, stop=stop) for first, (one, stop) in spans],
            kv_blocks=64,
            epoch=1,
            secret=b"known to them",
        )

    async def serve(self) -> None:
        """Tell the members to serve as a planner does: the leader first."""
        for name in dict.fromkeys(name for name, _ in self.cut):
            await self.ranked.serve(team(name))

    async def begun(self, *requests: Submit) -> None:
        """Wait until the pipeline has generated a token for each request."""
        for request in requests:
            await self.ranked.fleet.admit("a-0", request)
        await self.ranked.fleet.until(lambda: all(self.tokens(one.request_id) for one in requests))

    def tokens(self, request_id: str) -> list[int]:
        return [token for row in self.ranked.fleet.rows.get(request_id, []) for token in row.token_ids]

    def count(self, what: str) -> float:
        """Sum a metric over all leaders."""
        return sum(self.ranked.count(f"{name}-0", f"pipeline_{what}") for name in self.names)

    def kill(self, worker: str) -> None:
        made = self.ranked.fleet
        made.workers[worker].cancel()
        gone = LeaseChanged(service="worker", id=worker, epoch=1, state="dead", reason="killed", at=1.0)
        made.bus.publish(DEATH, gone, service="worker", id=worker)

    async def goes_on(self, expected: dict[str, list[int]], *requests: Submit) -> None:
        """What was lost is submitted again, elsewhere, with the tokens it has."""
        made = self.ranked.fleet
        await made.until(lambda: set(made.lost) == {one.request_id for one in requests})
        for one in requests:
            await made.admit("s-0", replace(one, generated=self.tokens(one.request_id)))
        assert await self.ranked.finished(*requests) == expected


def team(name: str) -> list[str]:
    return [f"{name}-{rank}" for rank in range(RANKS)]


@asynccontextmanager
async def ranked_pipeline(cut: Cut = PAIR, dtype: DType = "float32") -> AsyncIterator[RankedPipeline]:
    """All workers have what they run, and no more; the pipeline serves."""
    workers = [worker for name in sorted({name for name, _ in cut}) for worker in team(name)]
    async with ranked_workers(dtype, workers) as ranked:
        made = RankedPipeline(ranked, cut)
        for name in made.names:
            for rank in range(RANKS):
                await ranked.send(team(name), rank, made.held(name), "pipeline")
        await ranked.fleet.until(lambda: all(ranked.ready(one) == len(made.held(one[:-2])) for one in workers))
        await made.form()
        yield made
