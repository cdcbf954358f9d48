"""The adapters of the model that a worker serves: fetched from hosts when a request needs one, and evicted.

A request whose adapter is not here waits for it, and the others go on; so it does while a stage of the pipeline that is
led here has none. A step that comes upon rows of one that was evicted meanwhile waits for it itself.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import partial

import structlog

from livescale.services.worker.adapter_fetcher import WAIT_SECONDS, AdapterFetcher, OnceForAll
from livescale.services.worker.engine.contract import UNAVAILABLE, AdapterData, AdapterMissing, AdapterUnavailable
from livescale.services.worker.instance.context import WorkerContext
from livescale.services.worker.instance.serving import ServingLoop
from livescale.services.worker.pipeline.adapters import StageAdapters
from livescale.services.worker.scheduling.sequence import Sequence
from livescale.services.worker.tensor_parallel.group import TensorParallelGroup
from livescale.services.worker.tensor_parallel.leader import GroupLeader
from livescale.shared.model.adapter_shards import adapter_bytes
from livescale.shared.runtime.waiting import together

LOOK_SECONDS = 0.05  # how often it is looked whether an adapter may go

log = structlog.get_logger()


class AdapterStore:
    """Brings adapters to the engine, at most `limit_bytes` of them. Those that are used least recently go first, and
    none that a request here uses. `fetcher` receives them."""

    def __init__(
        self,
        context: WorkerContext,
        serving: ServingLoop,
        group: TensorParallelGroup,
        stages: StageAdapters,
        fetcher: AdapterFetcher,
        limit_bytes: int,
    ) -> None:
        self._context = context
        self._serving = serving
        self._group = group
        self._stages = stages
        self._fetcher = fetcher
        self._limit_bytes = limit_bytes
        self._sizes: OrderedDict[str, int] = OrderedDict()  # of those in the engine, the least recently used first
        # By version, and who leads: an instance has its own, as one that has ended may have begun with the same one.
        self._bringing = OnceForAll[tuple[GroupLeader, str], None](context)
        self._room = asyncio.Lock()
        context.runner.fetch_adapter = fetcher.fetch
        group.bring_adapters = self.bring_to_ranks
        stages.bring_here, stages.use_here, stages.recent_here = self.bring, self._use, self.recent
        serving.holds.append(self.hold)

    def hold(self, sequence: Sequence) -> None:
        """Run no step for a request until its adapter is here."""
        request = sequence.request
        if request.adapter is None:
            return
        version = request.adapter.version
        if version in self._context.runner.adapters and not self._stages.leads:
            self._use(version)
            return
        sequence.awaits_adapter = True
        self._start_waiting(sequence, version)

    def _start_waiting(self, sequence: Sequence, version: str) -> None:
        self._context.start(self._await(sequence, version), f"adapter of {sequence.request_id}")

    async def bring(self, version: str) -> None:
        """Return once an adapter is in the engine, on all ranks. Raises AdapterUnavailable."""
        if version in self._context.runner.adapters:
            self._use(version)
            return
        leader = self._group.leader
        await self._bringing.get((leader, version), partial(self._bring, leader, version))

    async def bring_to_ranks(self, versions: AbstractSet[str]) -> None:
        """Have adapters on all ranks before they run a step that was not held for these. Raises AdapterMissing."""
        leader = self._group.leader
        for version in sorted(versions - self._context.runner.adapters.keys()):
            try:
                await self._context.runner.add_adapter(await self._to_all(leader, version))
            except (AdapterUnavailable, ValueError) as error:
                raise AdapterMissing(f"adapter {version} did not come: {error}") from error

    async def _await(self, sequence: Sequence, version: str) -> None:
        try:
            await together(self.bring(version), self._stages.bring(version))
            while version not in self._context.runner.adapters:  # it was evicted again for one that comes first
                await self.bring(version)
        except AdapterUnavailable as error:
            self._serving.give_up(sequence, str(error), UNAVAILABLE)
        sequence.awaits_adapter = False
        self._serving.wake()

    async def _bring(self, leader: GroupLeader, version: str) -> None:
        """Bring an adapter to all ranks, to this one last: what is here is everywhere."""
        begun = self._context.clock.now()
        try:
            data = await self._to_all(leader, version)
            size_bytes = adapter_bytes(data.manifest, leader.size)
            while not await self._add(leader, data, size_bytes):
                await asyncio.sleep(LOOK_SECONDS)
                self._check_waiting(version, begun)
        except (ValueError, RuntimeError) as error:
            leader.forget(version)
            raise AdapterUnavailable(str(error)) from error
        except AdapterUnavailable:
            leader.forget(version)
            raise
        log.info("adapter_here", version=version, seconds=self._context.clock.now() - begun)

    async def _to_all(self, leader: GroupLeader, version: str) -> AdapterData:
        """Receive an adapter here while the other ranks do so. Raises AdapterUnavailable."""
        data, _ = await asyncio.gather(self._fetcher.fetch(version), leader.bring(version))
        return data

    async def _add(self, leader: GroupLeader, data: AdapterData, size_bytes: int) -> bool:
        """Add an adapter to the engine, after as many have gone as have to. Returns False, and nothing has gone, where
        too few may. Raises AdapterUnavailable, as where the instance has ended: the engine may have another model."""
        version = data.manifest.version
        if size_bytes > self._limit_bytes:
            raise AdapterUnavailable(f"the adapter takes {size_bytes} bytes; raise --adapter-bytes of workers")
        async with self._room:
            if leader is not self._group.leader:
                raise AdapterUnavailable("the instance has ended")
            if version in self._context.runner.adapters:
                return True  # a step fetched it itself
            going = self._going(version, size_bytes)
            if going is None:
                return False
            with self._having_wait(going):
                for idle in going:
                    await self._evict(leader, idle)
            await self._context.runner.add_adapter(data)
            self._sizes[version] = size_bytes
        return True

    def _going(self, version: str, size_bytes: int) -> list[str] | None:
        """The adapters to evict for one of this size, the least recently used first; None where too few may go."""
        here = self._context.runner.adapters
        for gone in self._sizes.keys() - here.keys():
            del self._sizes[gone]  # with the model that it was for
        for other in here.keys() - self._sizes.keys():  # which steps fetched themselves
            self._sizes[other] = here[other]
        used, going = self._used(version), list[str]()
        too_many = sum(self._sizes.values()) + size_bytes - self._limit_bytes
        for other, its_bytes in self._sizes.items():
            if too_many > 0 and other not in used:
                going.append(other)
                too_many -= its_bytes
        return None if too_many > 0 else going

    @contextmanager
    def _having_wait(self, going: Collection[str]) -> Iterator[None]:
        """While these adapters go, and until they are back, run no step for what uses them. At once: a request that
        waits for KV blocks now may have some at the next step."""
        waiting = [one for one in self._requests() if one.adapter in going and not one.awaits_adapter]
        for sequence in waiting:
            sequence.awaits_adapter = True
        for version in going:
            if self._serving.scheduler is not None:
                self._serving.scheduler.lose_adapter(version)
        try:
            yield
        finally:
            for sequence in waiting:
                self._start_waiting(sequence, str(sequence.adapter))

    async def _evict(self, leader: GroupLeader, version: str) -> None:
        self._sizes.pop(version, None)
        leader.forget(version)
        await self._context.runner.remove_adapter(version)
        log.info("adapter_evicted", version=version)

    def _check_waiting(self, version: str, since: float) -> None:
        """Raises AdapterUnavailable where it makes no sense to wait for room any longer: a request waits until it is
        its turn, as for KV blocks, and what nobody here waits for has had its time."""
        waits = any(sequence.adapter == version for sequence in self._requests())
        if not waits and self._context.clock.now() - since > WAIT_SECONDS:
            used = sum(self._sizes.values())
            raise AdapterUnavailable(f"requests use {used} bytes of adapters; raise --adapter-bytes of workers")

    def _used(self, wanted: str) -> set[str]:
        """The adapters that may not go for the one that is wanted: those of requests that have KV blocks, and of
        requests before the first that wants it. Who has blocks comes first, as one may wait for these that is before it
        in line and has its adapter already: each would wait for the other."""
        requests = sorted(self._requests(), key=lambda one: not one.blocks)
        first = next((place for place, one in enumerate(requests) if one.adapter == wanted), len(requests))
        kept = (one.adapter for place, one in enumerate(requests) if place < first or one.blocks)
        return {adapter for adapter in kept if adapter is not None}

    def _requests(self) -> list[Sequence]:
        scheduler = self._serving.scheduler
        return [] if scheduler is None else scheduler.in_order

    def recent(self) -> list[str]:
        """The adapters in the engine, the least recently used first, and those that are on their way there."""
        here = self._context.runner.adapters
        return [
            *(version for version in self._sizes if version in here),
            *(version for _, version in self._bringing.keys),
        ]

    def _use(self, version: str) -> None:
        if version in self._sizes:
            self._sizes.move_to_end(version)
