"""What a worker owns for its whole life: arena, link, engine and threads."""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from livescale.services.worker.engine.contract import Runner
from livescale.services.worker.engine.sizes import block_bytes
from livescale.services.worker.instance.loading import BlockMemory, Loading
from livescale.services.worker.scheduling.limits import SchedulerLimits
from livescale.services.worker.settings import WorkerSettings
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
    memory_export: MemoryExport | None = None


def scheduler_limits(settings: WorkerSettings, loading: Loading, kv_blocks: int) -> SchedulerLimits:
    """Return how many requests and tokens a worker with so many KV blocks takes for this model."""
    manifest = loading.manifest
    host_kv_blocks = settings.host_kv_bytes // block_bytes(manifest, settings.block_size)
    return settings.limits(loading.command.max_model_len, manifest.config.vocab_size, kv_blocks, host_kv_blocks)
