"""The system of `livescale bench roles`: two instances of a model, each on a core of its own, that get roles."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from livescale.load.bench.live.steps import Execution, StepLog
from livescale.load.bench.live.system import DTYPE, Expected, checked
from livescale.load.bench.roles.reservations import HeardReservations, hear_reserving, hear_taking_over
from livescale.load.bench.roles.rows import CONTEXT, FLOW_BEFORE, FLOW_SECONDS, MixedRun, Placing
from livescale.load.bench.samples import BenchFailed
from livescale.load.bench.system import CALL_SECONDS, MIB, MODEL, BenchSystem, Launcher, cores, give_core
from livescale.load.bench.watch import Watch
from livescale.load.client import LoadClient, open_client, send_open_loop
from livescale.load.records import Ask, RequestRecord
from livescale.shared.messages.membership import Role
from livescale.shared.messages.scaling import SetRole
from livescale.shared.runtime.role_settings import KvTransferMode
from livescale.shared.subjects import ROLE

WORKERS = FIRST, SECOND = "worker-0", "worker-1"
STREAM_SECONDS = 300.0
KV_BYTES = 192 * MIB
PARAMETERS = ("livescale_worker_received_bytes_total", "livescale_worker_shared_bytes_total")
EXPOSED, GIVEN = "livescale_kv_transfer_seconds", "livescale_kv_transfers_total"


@dataclass
class RolesBenchSystem:
    """A running system of prefill and decode workers, and what a bench watches of it."""

    system: BenchSystem
    watch: Watch
    client: LoadClient
    steps: StepLog
    expected: Expected
    reservations: HeardReservations

    async def place(self, first: Role, second: Role) -> None:
        """Give both workers their roles, and return once they say so."""
        await asyncio.gather(self._order(FIRST, first), self._order(SECOND, second))
        told = {FIRST: first, SECOND: second}
        await self.watch.until(
            lambda: all(self.watch.workers[worker].role == role for worker, role in told.items()), "roles have changed"
        )

    async def _order(self, worker: str, role: Role) -> None:
        await self.system.stack.bus.call(ROLE, SetRole(worker=worker, role=role), timeout=CALL_SECONDS)

    async def prefills(self, asks: Sequence[Ask]) -> list[Execution]:
        """Send all requests at once to the first worker, which prefills, and return its steps."""
        await self.place("prefill", "decode")
        self.steps.executions.clear()
        records = await asyncio.gather(*(self.client.fetch(ask, self.client.now()) for ask in asks))
        checked(records, self.expected)
        rows = sum(len(ask.prompt) for ask in asks)
        await self.watch.until(lambda: sum(one.rows for one in self._steps(FIRST)) >= rows, "all steps are logged")
        return self._steps(FIRST)

    def _steps(self, worker: str) -> list[Execution]:
        return [one for one in self.steps.executions if one.worker == worker]

    async def exposed(self, ask: Ask) -> float:
        """Seconds from the first token of a request, alone, until the second worker has it."""
        await self.place("prefill", "decode")
        before = await self._exposed()
        checked([await self.client.fetch(ask, self.client.now())], self.expected)
        after = await self._exposed()
        if after[1] != before[1] + 1:
            raise BenchFailed(f"request {ask.index} was not decoded by the other worker")
        return after[0] - before[0]

    async def _exposed(self) -> tuple[float, float]:
        sums, counts = (f"{EXPOSED}_{part}" for part in ("sum", "count"))
        found = await self._metrics(FIRST, (sums, counts), part="exposed")
        return found[sums], found[counts]

    async def _metrics(self, worker: str, names: Sequence[str], **labels: str) -> dict[str, float]:
        """Each of these metrics of a worker, over all samples with these labels."""
        text = await self.system.metrics(worker)
        found = dict.fromkeys(names, 0.0)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in found and labels.items() <= sample.labels.items():
                    found[sample.name] += sample.value
        return found

    async def mixed(self, placing: Placing, asks: Sequence[Ask]) -> MixedRun:
        """Send requests when they are due; in the middle both roles change, if they are to."""
        roles: tuple[Role, Role] = ("colocated", "colocated") if placing == "colocated" else ("prefill", "decode")
        await self.place(*roles)
        self.steps.executions.clear()
        before, records = await self._counted(), list[RequestRecord]()
        middle = max(ask.at for ask in asks) / 2
        async with asyncio.TaskGroup() as group:
            began = self.client.now()
            group.create_task(send_open_loop(self.client, list(asks), records))
            if placing == "switched":
                await asyncio.sleep(middle)
                await self.place("decode", "prefill")
        checked(records, self.expected)
        await self.watch.until_quiet()
        steps = [one.end - one.start for one in self._steps(SECOND)]
        given, moved = (after - earlier for after, earlier in zip(await self._counted(), before, strict=True))
        return MixedRun(placing, began + middle, records, steps, given, moved)

    async def _counted(self) -> tuple[float, float]:
        """How many requests workers have handed over, and how many bytes of parameters came to them, by link or
        mapped."""
        both = await asyncio.gather(*(self._metrics(worker, (GIVEN, *PARAMETERS)) for worker in WORKERS))
        return sum(one[GIVEN] for one in both), sum(one[name] for one in both for name in PARAMETERS)

    async def switch(self, asks: Sequence[Ask], worker: str, phase: float) -> float:
        """Have this worker decode, and the other prefill, while short requests come: seconds from the order until it
        was asked for the first reservation that it took.

        `phase`: how much of the time between two requests is over when the order is given, from 0 to 1.
        """
        before: tuple[Role, Role] = ("prefill", "decode") if worker == FIRST else ("decode", "prefill")
        await self.place(*before)
        self.reservations.clear()
        records = list[RequestRecord]()
        async with asyncio.TaskGroup() as group:
            group.create_task(send_open_loop(self.client, list(asks), records))
            await asyncio.sleep((FLOW_BEFORE + phase) * FLOW_SECONDS)
            ordered = self.client.now()
            await self.place(*reversed(before))
        checked(records, self.expected)
        return self.reservations.first_after(ordered, worker)


@asynccontextmanager
async def roles_bench_system(
    launcher: Launcher,
    checkpoint: Path,
    steps: StepLog,
    expected: Expected,
    rate: float,
    rows: int,
    kv_transfer: KvTransferMode,
) -> AsyncIterator[RolesBenchSystem]:
    """Start the system; both instances serve, and are colocated. `rate`: bytes a second of every link; 0: as many as it
    carries. `rows`: of a step, at most."""
    heard = HeardReservations()
    async with _start(replace(launcher, echo=steps.echo), checkpoint, rate, rows, kv_transfer) as system:
        for worker, core in zip(WORKERS, cores(), strict=True):
            give_core(system.pid(worker), core)
        watch, bus = system.watch, system.stack.bus
        steps.changed = watch.changes.tell
        async with open_client(system.url, MODEL, STREAM_SECONDS) as client:
            hearing = [
                asyncio.create_task(hear_reserving(bus, client.now, heard)),
                asyncio.create_task(hear_taking_over(bus, heard)),
            ]
            try:
                await watch.until(lambda: watch.serving() == list(WORKERS), "both serve")
                yield RolesBenchSystem(system, watch, client, steps, expected, heard)
            finally:
                for task in hearing:
                    task.cancel()
                await asyncio.wait(hearing)


def _start(
    launcher: Launcher, checkpoint: Path, rate: float, rows: int, kv_transfer: KvTransferMode
) -> AbstractAsyncContextManager[BenchSystem]:
    """Steps are logged at level debug."""
    return launcher.start(
        checkpoint,
        {"min_instances": 2, "max_instances": 2},
        workers=2,
        dtype=DTYPE,
        max_model_len=CONTEXT,
        kv_bytes=KV_BYTES,
        link_rate=rate,
        log_level="debug",
        enable_prefix_caching=False,  # the same prompts are asked again and again
        disaggregation="on",
        prefill_share=0.5,  # so that nobody but the bench gives roles
        kv_transfer=kv_transfer,
        worker_options={"tbt_ratio": 1.85, "max_num_batched_tokens": rows},
    )
