"""The adapters of the model that a worker serves: fetched from hosts when a request needs one, and evicted.

A request whose adapter is not here waits for it, and the others go on; so it does while a stage of the pipeline that is
led here has none. A step that comes upon rows of one that was evicted meanwhile waits for it itself.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Set as AbstractSet
from functools import partial

import structlog

from livescale.services.worker.adapter_fetcher import WAIT_SECONDS, AdapterFetcher, one_task
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
        self._bringing: dict[tuple[str, str], asyncio.Task[None]] = {}  # by instance of several ranks, and version
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
        self._context.start(self._await(sequence, version), f"adapter of {request.request_id}")

    async def bring(self, version: str) -> None:
        """Return once an adapter is in the engine, on all ranks. Raises AdapterUnavailable."""
        if version in self._context.runner.adapters:
            self._use(version)
            return
        leader = self._group.leader
        bring = partial(self._bring, leader, version)
        await asyncio.shield(one_task(self._bringing, (leader.instance, version), bring))

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
        except AdapterUnavailable as error:
            self._serving.give_up(sequence, str(error), UNAVAILABLE)
        sequence.awaits_adapter = False
        self._serving.wake()

    async def _bring(self, leader: GroupLeader, version: str) -> None:
        """Bring an adapter to all ranks, to this one last: what is here is everywhere."""
        begun = self._context.clock.now()
        try:
            data = await self._to_all(leader, version)
            async with self._room:
                size_bytes = adapter_bytes(data.manifest, leader.size)
                await self._make_room(leader, size_bytes)
                await self._context.runner.add_adapter(data)
                self._sizes[version] = size_bytes
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

    async def _make_room(self, leader: GroupLeader, size_bytes: int) -> None:
        """Evict adapters until one of this size fits. Raises AdapterUnavailable."""
        if size_bytes > self._limit_bytes:
            raise AdapterUnavailable(f"the adapter takes {size_bytes} bytes; raise --adapter-bytes of workers")
        here = self._context.runner.adapters
        for gone in self._sizes.keys() - here.keys():
            del self._sizes[gone]  # with the model that it was for
        for version in here.keys() - self._sizes.keys():  # which steps fetched themselves
            self._sizes[version] = here[version]
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while sum(self._sizes.values()) + size_bytes > self._limit_bytes:
                    used = self._used()
                    idle = next((version for version in self._sizes if version not in used), None)
                    if idle is None:
                        await asyncio.sleep(LOOK_SECONDS)
                    else:
                        del self._sizes[idle]
                        leader.forget(idle)
                        await self._context.runner.remove_adapter(idle)
                        log.info("adapter_evicted", version=idle)
        except TimeoutError:
            raise AdapterUnavailable(
                f"requests use {sum(self._sizes.values())} bytes of adapters; raise --adapter-bytes of workers"
            ) from None

    def _used(self) -> set[str]:
        scheduler = self._serving.scheduler
        return set() if scheduler is None else {one.adapter for one in scheduler.in_order if one.adapter is not None}

    def recent(self) -> list[str]:
        """The adapters in the engine, the least recently used first, and those that are on their way there."""
        here = self._context.runner.adapters
        return [*(version for version in self._sizes if version in here), *(version for _, version in self._bringing)]

    def _use(self, version: str) -> None:
        if version in self._sizes:
            self._sizes.move_to_end(version)
