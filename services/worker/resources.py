"""What a worker owns for its whole life: memory for parameters, link, engine and threads."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Self

from livescale.services.worker.engine.contract import Runner, zeros
from livescale.services.worker.instance.parameter_memory import AnyArena, ParameterMemory
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.links.contract import Link, View
from livescale.shared.links.meter import Meter, MeteredLink, Paths
from livescale.shared.links.open import open_link
from livescale.shared.memory.arena import Arena
from livescale.shared.memory.devices import CPU
from livescale.shared.transfer.memory_export import MemoryExport, OpenMemoryExport, open_memory_export


@dataclass(frozen=True)
class Resources:
    """Made and touched when the worker starts. `meter` measures what serving moves over the link; `paths` names the
    ways that parameters took.
    """

    parameters: ParameterMemory
    link: Link
    runner: Runner
    hashing: Executor
    meter: Meter
    memory_export: MemoryExport | None = None
    paths: Paths = field(default_factory=Paths)

    @property
    def metered_link(self) -> Link:
        """The link as parts use it whose traffic counts as serving's."""
        return MeteredLink(self.link, self.meter)


def make_arena(size_bytes: int, device: str) -> AnyArena:
    """Return memory for parameters on this device, touched."""
    if device == CPU:
        return Arena(size_bytes)
    from livescale.shared.memory.device_arena import (
        DeviceArena,  # it imports torch, which may be missing where nothing runs on a GPU
    )

    return DeviceArena(size_bytes, device)


@dataclass(frozen=True)
class ResourceMaker:
    """How a worker on this `device` gets its engine, its link, a way to export its memory to its neighbours, memory
    for parameters, and memory of the host for adapters."""

    make_runner: Callable[[], Runner]
    open_link: Callable[[], Awaitable[Link]]
    open_export: OpenMemoryExport | None = None
    device: str = CPU
    new_arena: Callable[[int, str], AnyArena] = make_arena
    new_memory: Callable[[int], View] = zeros

    @classmethod
    def of(cls, settings: WorkerSettings, make_runner: Callable[[], Runner], device: str) -> Self:
        """Return what opens links and exports by the settings."""
        if device != CPU:
            # What others have in the host's memory is of no use on a GPU before it is copied there.
            return cls(make_runner, lambda: open_link(settings, device), None, device)
        return cls(make_runner, lambda: open_link(settings), lambda address: open_memory_export(settings, address))

    @asynccontextmanager
    async def open(
        self, arena_bytes: int, now: Callable[[], float], *, keep_parameters: bool = True
    ) -> AsyncIterator[Resources]:
        """Make everything, with so much memory for parameters, and close it at the end. Memory is touched first."""
        runner = self.make_runner()
        arena, _ = await asyncio.gather(asyncio.to_thread(self.new_arena, arena_bytes, self.device), runner.ready())
        link = await self.open_link()
        memory_export = None if self.open_export is None else self.open_export(link.address)
        try:
            with ThreadPoolExecutor(1, "checksum") as hashing:
                parameters = ParameterMemory(arena, keep_parameters)
                yield Resources(parameters, link, runner, hashing, Meter(now), memory_export)
        finally:
            if memory_export is not None:
                await memory_export.close()
            await link.close()
            await runner.close()
