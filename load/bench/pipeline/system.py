"""The system of `livescale bench pipeline`: workers with modelled engines that send real bytes over real links."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from livescale.load.bench.live.system import asks
from livescale.load.bench.pipeline.even_model import HIDDEN, LAYERS
from livescale.load.bench.pipeline.rows import PipelineRun
from livescale.load.bench.samples import BenchFailed
from livescale.load.bench.system import BY_HAND, MIB, MODEL, SCALE_SECONDS, BenchSystem, Launcher, parameter_bytes
from livescale.load.bench.watch import PATIENCE_SECONDS, Watch
from livescale.load.client import LoadClient, open_client
from livescale.load.records import find_fault
from livescale.services.planner.plans.plan import BUSY_SHARE
from livescale.shared.messages.registry import Snapshot
from livescale.shared.messages.transfers import LiveMode
from livescale.shared.runtime.settings import SwitchKv

HOST = "host-0"
NEW = 4  # instances: sub-groups are of equal size with one source and with two
PROMPT, TOKENS, REQUESTS = 256, 32, 150
ROOM = 8  # requests that a worker has KV blocks for
CONTEXT = 1_024
KV_BYTES = ROOM * (PROMPT + TOKENS) * 2 * 2 * HIDDEN * LAYERS  # in bfloat16
# The share of a link above which a plan takes nothing from its node. Traffic of the run before has to fade below it, or
# only one source would be left, and no pipeline.
TRAFFIC_LEFT = BUSY_SHARE / 10

Tokens = dict[int, list[int]]  # of answers, by request


@dataclass
class PipelineBenchSystem:
    """One instance serves, and NEW workers are spare, between runs. `tokens`: of the first run, by request."""

    system: BenchSystem
    watch: Watch
    client: LoadClient
    tokens: Tokens
    switch_kv: SwitchKv
    link_rate: float

    async def run(self, mode: LiveMode, sources: int) -> PipelineRun:
        """Have requests wait, scale out from one source (the instance that serves) or two (its host's memory, too), and
        return once all are answered and one instance is left. The KV that was moved in the run before is forgotten."""
        await self.watch.until(
            lambda: self.watch.traffic() < TRAFFIC_LEFT * self.link_rate, "serving has not moved anything of late"
        )
        async with self._without_host() if sources == 1 else nullcontext():
            requests = asks(REQUESTS, PROMPT, TOKENS)
            sending = [asyncio.create_task(self.client.fetch(ask, self.client.now())) for ask in requests]
            await self.watch.until(
                lambda: self.watch.requests + sum(one.done() for one in sending) >= REQUESTS, "all requests wait"
            )
            done = await self.system.scale(1 + NEW, mode)
            records = await asyncio.gather(*sending)
        for each in records:
            right = self.tokens.setdefault(each.index, each.token_ids)
            if fault := find_fault(each) or ("other tokens than before" if each.token_ids != right else None):
                raise BenchFailed(f"request {each.index}: {fault}")
        await self.watch.until_quiet()
        await self.system.scale(1)
        await self.watch.until(lambda: len(self.watch.serving()) == 1, "one instance is left")
        return PipelineRun(mode, sources, done, records, self.switch_kv)

    @asynccontextmanager
    async def _without_host(self) -> AsyncIterator[None]:
        """Stop the host's process until all others treat it as dead, so that its copy is not used."""
        pid = self.system.pid(HOST)
        os.kill(pid, signal.SIGSTOP)
        try:
            await self._until(lambda snapshot: HOST not in present(snapshot), "the host counts as dead")
            yield
        finally:
            os.kill(pid, signal.SIGCONT)
        await self._until(lambda snapshot: HOST in holders(snapshot), "the host has the model again")

    async def _until(self, holds: Callable[[Snapshot], bool], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not holds(await self.system.snapshot()):  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise BenchFailed(f"after {PATIENCE_SECONDS:g} s it is not yet true that {what}") from None


def present(snapshot: Snapshot) -> set[str]:
    return {member.id for member in snapshot.members if member.lease == "alive"}


def holders(snapshot: Snapshot) -> set[str]:
    alive: Sequence[str] = sorted(present(snapshot))
    return {host.id for host in snapshot.hosts if host.id in alive and any(one.total for one in host.holdings)}


@asynccontextmanager
async def pipeline_bench_system(
    launcher: Launcher, checkpoint: Path, rate: float, profile: str, speed: float, switch_kv: SwitchKv, tokens: Tokens
) -> AsyncIterator[PipelineBenchSystem]:
    """Start the system. `rate`: bytes a second of every link. `tokens` are those of requests in earlier systems, if
    any. Without pipelines plans are the same."""
    async with launcher.start(
        checkpoint,
        BY_HAND,
        {"worker"},  # the host is stopped on purpose
        workers=1 + NEW,
        dtype="bfloat16",
        engine="modelled",
        engine_profile=profile,
        engine_speed=speed,
        max_model_len=CONTEXT,
        arena_bytes=parameter_bytes(checkpoint) + 16 * MIB,
        kv_bytes=KV_BYTES,
        enable_prefix_caching=False,  # the same prompts are asked in every run
        link_rate=rate,
        plan_policy="binomial",
        keep_parameters=False,  # each scale is to move them
        switch_kv=switch_kv,
        kill_hung_s=0,  # the host wakes with what it has in memory
    ) as system:
        watch = system.watch
        await watch.until(lambda: len(watch.workers) == 1 + NEW and len(watch.serving()) == 1, "one of all serves")
        async with open_client(system.url, MODEL, SCALE_SECONDS) as client:
            yield PipelineBenchSystem(system, watch, client, tokens, switch_kv, rate)
