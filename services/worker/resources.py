"""What a worker owns for its whole life."""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from livescale.services.worker.engine.contract import Runner
from livescale.services.worker.loading import BlockMemory
from livescale.shared.links.contract import Link
from livescale.shared.links.meter import Meter
from livescale.shared.transfer.memory_export import MemoryExport


class AnyArena(Protocol):
    """Memory for parameters, of the host or of a GPU."""

    def place(self, sizes: Sequence[int]) -> BlockMemory:
        """Reserve a stretch for each block. Raises ArenaFull and reserves nothing where there is too little."""

    def clear(self) -> None:
        """Free all stretches, so that the parameters of another model can be placed."""


@dataclass(frozen=True)
class Resources:
    """Made and touched when the worker starts. `meter` measures what serving moves over the link."""

    arena: AnyArena
    link: Link
    meter: Meter
    runner: Runner
    hashing: Executor
    door: MemoryExport | None = None
