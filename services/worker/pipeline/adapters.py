"""Adapters in pipelines: the worker that leads has one brought to all stages before rows use it, so that no step waits
for it and other requests go on."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from livescale.services.worker.engine.contract import UNAVAILABLE, AdapterUnavailable
from livescale.shared.bus.contract import Bus, BusError, Refusal
from livescale.shared.messages.model_parallel import MOST_USED, Pipeline, StageAdapter
from livescale.shared.runtime.waiting import together
from livescale.shared.subjects import STAGE_ADAPTER

BRING_SECONDS = 35.0  # more than a worker tries for

log = structlog.get_logger()


async def _not_here(version: str) -> None:
    raise AdapterUnavailable(f"adapter {version}: this worker fetches none")


class StageAdapters:
    """Has adapters at the stages of the pipeline that this worker leads, if it does.

    `bring_here` brings one to this worker, whoever leads, and `use_here` notes that one is used. `recent_here` has
    those that are here or on their way, the least recently used first. Stages say what they have as they answer, and
    are not asked for that again: an adapter goes only as another one comes.
    """

    def __init__(self, bus: Bus, worker: str) -> None:
        self.bring_here: Callable[[str], Awaitable[None]] = _not_here
        self.use_here: Callable[[str], None] = lambda version: None
        self.recent_here: Callable[[], list[str]] = list
        self._bus = bus
        self._me = worker
        self._led: Pipeline | None = None
        self._over = asyncio.Event()
        self._having: dict[str, frozenset[str]] = {}  # what each other worker said that it has

    @property
    def leads(self) -> bool:
        return self._led is not None

    def lead(self, command: Pipeline) -> None:
        self._led, self._over = command, asyncio.Event()
        self._having.clear()

    def end(self) -> None:
        """Have everything that waits for other stages stop waiting, as the pipeline is over."""
        self._led = None
        self._over.set()

    async def bring(self, version: str) -> None:
        """Return once all other stages have an adapter, or the pipeline is over. Raises AdapterUnavailable."""
        if self._led is None:
            return
        others = {stage.node.id for stage in self._led.stages} - {self._me}
        others = {worker for worker in others if version not in self._having.get(worker, ())}
        if not others:
            return
        ask = StageAdapter(pipeline=self._led.id, version=version, used=self._recent(version))
        over = asyncio.ensure_future(self._over.wait())
        bringing = asyncio.ensure_future(together(*(self._bring(worker, ask) for worker in sorted(others))))
        try:
            await asyncio.wait((over, bringing), return_when=asyncio.FIRST_COMPLETED)
            if bringing.done():
                bringing.result()
        finally:
            over.cancel()
            bringing.cancel()

    def _recent(self, version: str) -> list[str]:
        """The adapters that were used of late, this one last."""
        return [*(one for one in self.recent_here() if one != version), version][-MOST_USED:]

    async def _bring(self, worker: str, ask: StageAdapter) -> None:
        try:
            here = await self._bus.call(STAGE_ADAPTER, ask, timeout=BRING_SECONDS, id=worker)
            if self._led is not None and self._led.id == ask.pipeline:
                self._having[worker] = frozenset(here.versions)
        except BusError as error:
            if isinstance(error, Refusal) and error.code == UNAVAILABLE:
                raise AdapterUnavailable(f"{worker}: {error.message}") from error
            # It is dead, of which this worker is told, or is no part of the pipeline any more; or it is of a release
            # that has no such call, and fetches the adapter in its step.
            log.warning("adapter_not_brought", worker=worker, version=ask.version, error=str(error))
