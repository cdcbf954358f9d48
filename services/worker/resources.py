"""What a worker owns for its whole life."""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from livescale.services.worker.engine.contract import Runner
from livescale.services.worker.loading import BlockMemory
from livescale.shared.links.contract import Link
from livescale.shared.links.meter import Meter
from livescale.shared.transfer.door import Door


class AnyArena(Protocol):
    """In the host's memory or in a GPU's."""

    def place(self, sizes: Sequence[int]) -> BlockMemory:
        """A stretch per block. Raises ArenaFull and places nothing."""

    def clear(self) -> None: ...


@dataclass(frozen=True)
class Resources:
    """Made and touched at its start. The meter is for what serving moves over the link."""

    arena: AnyArena
    link: Link
    meter: Meter
    runner: Runner
    hashing: Executor
    door: Door | None = None
