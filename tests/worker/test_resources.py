"""A worker's resources are touched before it works, and closed together whatever ends it."""

import pytest

from livescale.services.worker.engine.modelled import ModelledRunner
from livescale.services.worker.resources import ResourceMaker, Resources, make_arena
from livescale.shared.links.open import open_link
from livescale.shared.memory.arena import ArenaFull
from livescale.shared.memory.devices import CPU
from livescale.shared.runtime.clock import SystemClock
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.transfer.memory_export import MemoryExport, open_memory_export
from tests.worker.engine.made_up import LATENCY

KIB = 1024
SETTINGS = LinkSettings(transport="socket")


class NotingRunner(ModelledRunner):
    """Notes that it was closed."""

    closed = False

    async def close(self) -> None:
        self.closed = True
        await super().close()


def runner() -> NotingRunner:
    return NotingRunner(64 * KIB, 16, LATENCY, 1.0, SystemClock())


async def test_everything_is_closed_when_the_work_fails() -> None:
    engine, exports, opened = runner(), list[MemoryExport | None](), list[Resources]()

    def open_export(address: bytes) -> MemoryExport | None:
        exports.append(open_memory_export(SETTINGS, address))
        return exports[-1]

    maker = ResourceMaker(lambda: engine, lambda: open_link(SETTINGS), open_export)

    async def work() -> None:
        async with maker.open(64 * KIB, SystemClock().now) as resources:
            opened.append(resources)
            assert resources.memory_export is exports[0]
            assert resources.metered_link.address == resources.link.address
            assert not engine.closed
            raise ValueError("the worker ends")

    with pytest.raises(ValueError, match="the worker ends"):
        await work()
    assert engine.closed
    with pytest.raises(RuntimeError, match="after shutdown"):
        opened[0].hashing.submit(str)


async def test_without_an_export_neighbours_get_parameters_over_the_link() -> None:
    async with ResourceMaker(runner, lambda: open_link(SETTINGS)).open(64 * KIB, SystemClock().now) as resources:
        assert resources.memory_export is None


def test_an_arena_is_as_large_as_was_asked_for() -> None:
    arena = make_arena(64 * KIB, CPU)
    assert [view.nbytes for view in arena.place([32 * KIB, 16 * KIB])] == [32 * KIB, 16 * KIB]
    arena.clear()
    with pytest.raises(ArenaFull):
        arena.place([128 * KIB])
