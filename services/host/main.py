"""The process of a host: it opens the link and starts the actor."""

import structlog
from msgspec.structs import replace

from livescale.services.host.actor import HostService
from livescale.services.host.disk import ThreadDisk, available_bytes
from livescale.services.host.settings import HostSettings
from livescale.shared.links.open import open_link
from livescale.shared.memory.devices import count_gpus
from livescale.shared.process.run import World, run_process
from livescale.shared.transfer.memory_export import open_memory_export, shares_memory

log = structlog.get_logger()


def main(settings: HostSettings) -> None:
    def build(world: World) -> HostService:
        available = available_bytes()
        if available < settings.cache_bytes:
            log.warning("cache_limited_by_machine", cache_bytes=settings.cache_bytes, available_bytes=available)
        limited = replace(settings, cache_bytes=min(settings.cache_bytes, available))
        pinned = settings.pin == "auto" and count_gpus() > 0
        shared = shares_memory(settings)
        disk = ThreadDisk(keep=settings.pack, packed_dir=settings.packed_dir, shared=shared, pinned=pinned)
        memory = "pinned" if pinned else "host"
        return HostService(
            world,
            limited,
            disk,
            lambda: open_link(settings, memory),
            lambda address: open_memory_export(settings, address),
        )

    run_process(settings, "host", build)
