"""Measures prefill and decode at two instances, against two that do both: which systems run, and what of."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import TypeVar

from msgspec.structs import replace

from livescale.load.bench.live.steps import StepLog
from livescale.load.bench.live.system import DTYPE, Expected
from livescale.load.bench.record import RecordPrinter
from livescale.load.bench.roles.rows import (
    CONTEXT,
    LONE_PROMPT,
    LONE_ROWS,
    ROWS,
    KvSizes,
    Placing,
    RolesLoads,
    RolesMeasurements,
    exposed_rows,
    mixed_load,
    mixed_rows,
    prefill_rate,
    roles_loads,
    sending_rows,
    switch_rows,
)
from livescale.load.bench.roles.system import WORKERS, RolesBenchSystem, roles_bench_system
from livescale.load.bench.system import Launcher, Renewable, renewable
from livescale.load.engine_alone import undisturbed
from livescale.load.records import Ask
from livescale.shared.model.block_layout import ITEM_BYTES
from livescale.shared.model.checkpoint import load_model_config
from livescale.shared.runtime.role_settings import KvTransferMode

T = TypeVar("T")
SWITCHES = 20
KV_SHARE = 0.5  # of the prefill, for all KV over a link that is shaped
UNSHAPED = 0.0
PLACINGS: tuple[Placing, ...] = ("apart", "colocated", "switched")


async def measure(printer: RecordPrinter, checkpoint: Path, repeats: int, launcher: Launcher) -> RolesMeasurements:
    """Run every kind `repeats` times. Raises BenchFailed if a system does not do what is measured."""
    config, loads = load_model_config(checkpoint), roles_loads()
    layer_bytes = 2 * config.num_key_value_heads * config.head_dim * ITEM_BYTES[DTYPE]
    done = RolesMeasurements(KvSizes(config.num_hidden_layers, layer_bytes))
    printer.progress("an undisturbed engine answers the same requests")
    expected: Expected = await undisturbed(checkpoint, DTYPE, list(loads), context=CONTEXT)
    steps = StepLog(launcher.echo, config.num_hidden_layers)
    system = partial(roles_bench_system, launcher, checkpoint, steps, expected)
    printer.progress("a system whose links are not shaped")
    async with renewable(partial(system, UNSHAPED, ROWS, "by-layer")) as systems:
        await RolesBench(printer, systems, done, loads).unshaped(repeats)
    printer.progress("another one, for prompts in one step")
    async with renewable(partial(system, UNSHAPED, LONE_ROWS, "by-layer")) as systems:
        await RolesBench(printer, systems, done, loads).calibrate()
    done.rate = done.kv.whole(LONE_PROMPT) / (KV_SHARE * done.prefill)
    modes: tuple[tuple[KvTransferMode, list[float]], ...] = (
        ("by-layer", done.exposed),
        ("by-request", done.by_request),
    )
    for mode, exposed in modes:
        printer.progress(f"{mode}, a system whose links carry {done.rate / 1e6:.0f} MB/s")
        async with renewable(partial(system, done.rate, LONE_ROWS, mode)) as systems:
            await RolesBench(printer, systems, done, loads).lone(exposed)
    for record in exposed_rows(done):
        printer.emit(record)
    return done


@dataclass(frozen=True)
class RolesBench:
    """What is measured in one system, or in those that took its place; all of it goes to `done`."""

    printer: RecordPrinter
    systems: Renewable[RolesBenchSystem]
    done: RolesMeasurements
    loads: RolesLoads

    async def sampled(self, sample: Callable[[RolesBenchSystem], Awaitable[T]]) -> T:
        """What this tells of the system that is there, which may be another one after a stall or a loss."""

        async def undisturbed() -> T:
            system = self.systems.now
            return await system.watch.losses.over(lambda: sample(system))

        return await self.printer.samples.take_async(undisturbed, self.systems.renew)

    async def unshaped(self, repeats: int) -> None:
        """Everything but what KV exposes over a slow link."""
        for number in range(repeats):
            await self.rates(f"{number + 1} of {repeats}")
        for record in sending_rows(self.done):
            self.printer.emit(record)
        asks = mixed_load(self.loads.mixed, median(self.done.unsent))
        for number in range(repeats):
            for placing in PLACINGS:
                await self.mixed(placing, asks, f"{number + 1} of {repeats}")
        self.printer.progress(f"{SWITCHES} changes of both roles while short requests come")
        for number in range(SWITCHES):
            # An order comes at any time: each at another moment between two requests.
            phase = (number + 0.5) / SWITCHES
            switch = partial(RolesBenchSystem.switch, asks=self.loads.flow, worker=WORKERS[number % 2], phase=phase)
            self.done.switches.append(await self.sampled(switch))
        for record in chain(mixed_rows(self.done), switch_rows(self.done)):
            self.printer.emit(record)

    async def calibrate(self) -> None:
        """How long one prompt takes, alone; the first one is for warming up."""
        self.printer.progress("prompts, one at a time")
        seconds = list[float]()
        for ask in (self.loads.lone[0], *self.loads.lone):
            stays = replace(ask, max_tokens=1)
            steps = await self.sampled(partial(RolesBenchSystem.prefills, asks=[stays]))
            seconds.append(sum(one.end - one.start for one in steps))
            self.done.last_rows = steps[-1].rows
        self.done.prefill = median(seconds[1:])

    async def rates(self, which: str) -> None:
        """Prompts one after the other, whose KV stays or leaves."""
        self.printer.progress(f"prompts without a pause, {which}")
        for asks, rates in ((self.loads.unsent, self.done.unsent), (self.loads.sent, self.done.sending)):
            steps = await self.sampled(partial(RolesBenchSystem.prefills, asks=asks))
            rates.append(prefill_rate(steps))

    async def mixed(self, placing: Placing, asks: Sequence[Ask], which: str) -> None:
        self.printer.progress(f"{placing}, {which}")
        run = await self.sampled(partial(RolesBenchSystem.mixed, placing=placing, asks=asks))
        self.done.mixed.append(run)
        self.printer.progress(f"  TBT p99 {run.tbt_p99 * 1e3:.1f} ms, TTFT p50 {run.ttft_p50 * 1e3:.0f} ms")

    async def lone(self, exposed: list[float]) -> None:
        """One request at a time; the first one is for warming up."""
        for ask in (self.loads.lone[0], *self.loads.lone):
            exposed.append(await self.sampled(partial(RolesBenchSystem.exposed, ask=ask)))
        del exposed[0]
