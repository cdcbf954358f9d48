"""Sources that serve, and a target whose blocks come when a test says so: real workers, engines and links."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from msgspec.structs import replace

from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.kernels.variants import choose_kernels
from livescale.services.worker.engine.kv_store import allocate_kv_memory
from livescale.services.worker.settings import MIB
from livescale.shared.messages.live import Help
from livescale.shared.messages.parameters import DType
from livescale.shared.messages.requests import Submit
from livescale.shared.messages.transfers import Inflow, LiveMode, Serve
from livescale.shared.subjects import HELP, LOAD, SERVE
from tests.samples import sample
from tests.worker.fleet import CONTEXT, Fleet, fleet
from tests.worker.serving import serve

TARGET = "t"


@dataclass
class LiveWorkers:
    """A fleet with a target. `given` blocks of the target are on their way; the first two are the embedding and the
    first layer."""

    fleet: Fleet
    mode: LiveMode
    given: int = 0
    inflows: list[Inflow] = field(default_factory=list)

    @property
    def layers(self) -> int:
        return self.fleet.manifest.config.num_hidden_layers

    def count(self, worker: str, what: str) -> float:
        return sample(self.fleet.telemetry[worker], f"livescale_worker_{what}_total")

    async def give(self, blocks: int) -> None:
        """Have the target receive its blocks up to this number, and wait until they are laid out."""
        ticket = 100 + blocks
        inflow = Inflow(ticket=ticket, upstream=self.fleet.me, blocks=list(range(self.given, blocks)))
        self.inflows = [inflow]
        self.given = blocks
        command = replace(self.fleet.command(TARGET, inflow, plan="live"), live=self.mode)
        await self.fleet.bus.call(LOAD, command, timeout=60, id=TARGET)
        self.fleet.feed(TARGET, ticket)
        await self.fleet.until(lambda: self.ready == blocks)

    async def give_layers(self, layers: int) -> None:
        await self.give(layers + 1)

    async def give_all(self) -> None:
        await self.give(self.layers + 2)

    @property
    def ready(self) -> int:
        holding = self.fleet.reports[TARGET].holding if TARGET in self.fleet.reports else None
        return 0 if holding is None else len(holding.ready)

    async def help(self, *sources: str, targets: tuple[str, ...] = (TARGET,)) -> None:
        for source in sources:
            command = Help(
                plan_id="live",
                model="m",
                version=self.fleet.manifest.version,
                targets=[self.fleet.node(target) for target in targets],
                epoch=1,
            )
            await self.fleet.bus.call(HELP, command, timeout=60, id=source)

    async def serve(self, worker: str = TARGET) -> None:
        await self.fleet.bus.call(SERVE, Serve(plan_id="live", instance=f"m-{worker}", epoch=1), timeout=60, id=worker)

    async def finish(self, request: Submit) -> None:
        """Wait until the request has ended."""
        id = request.request_id
        await self.fleet.until(lambda: any(row.finish_reason for row in self.fleet.rows.get(id, [])))

    async def ran(self, layers: float) -> None:
        """Wait until the target has run so many layers of all its requests together."""
        async with asyncio.timeout(60):
            while self.count(TARGET, "live_layers") < layers:  # noqa: ASYNC110 (a counter tells nobody)
                await asyncio.sleep(0.005)

    def undisturbed(self, *requests: Submit) -> dict[str, list[int]]:
        """Return the tokens that an engine alone generates for these requests."""
        engine = TorchEngine(
            self.fleet.manifest, allocate_kv_memory(4 * MIB), 16, CONTEXT, choose_kernels("auto").kernels
        )
        for index, view in enumerate(self.fleet.memory):
            engine.add_block(index, view)
        return {one.request_id: serve(engine, [(0, one)]).tokens[one.request_id] for one in requests}


@asynccontextmanager
async def live_workers(
    *sources: str, mode: LiveMode = "zigzag", dtype: DType = "float32", **settings: int
) -> AsyncIterator[LiveWorkers]:
    """Start sources that serve, and a target that is spare."""
    async with fleet(*(sources or ("s",)), TARGET, dtype=dtype, **settings) as made:
        for ticket, source in enumerate(sources or ("s",)):
            await made.load(source, made.me, ticket=ticket)
            made.feed(source, ticket)
            await made.whole(source)
            await made.serve(source)
        yield LiveWorkers(made, mode)
