"""What tests of the control plane ask it, its fake workers and its fake hosts."""

import asyncio

from livescale.shared.messages.registry import ModelEntry
from livescale.shared.messages.scaling import ScaleRecord
from tests.control.control_plane import ControlPlane, spec
from tests.control.fake_host import FakeHost
from tests.control.fake_worker import FakeWorker
from tests.control.fakes import BLOCKS


def fake(plane: ControlPlane, id: str) -> FakeWorker:
    found = plane.fabric[id]
    assert isinstance(found, FakeWorker)
    return found


async def until_half_way(plane: ControlPlane, id: str) -> None:
    """Some blocks of its parameters have arrived at this worker, not all."""
    async with asyncio.timeout(5.0):
        while len(fake(plane, id).received) < BLOCKS // 2:  # noqa: ASYNC110 another process's state
            await asyncio.sleep(0.01)
    assert fake(plane, id).state == "loading"


def replanned(record: ScaleRecord) -> list[tuple[str | None, str]]:
    return [(phase.node, phase.detail) for phase in record.phases if phase.name == "replanned"]


async def record_of(plane: ControlPlane, id: str | None) -> ScaleRecord:
    return next(record for record in await plane.records() if record.id == id)


async def until_ended(plane: ControlPlane, id: str | None) -> ScaleRecord:
    async def ended() -> bool:
        return (await record_of(plane, id)).state in ("done", "failed")

    await plane.until(ended)
    return await record_of(plane, id)


def last_out(records: list[ScaleRecord]) -> ScaleRecord:
    return [record for record in records if record.decision.action == "out"][-1]


async def keep(plane: ControlPlane, instances: int) -> None:
    """Have the monitor keep this many instances, and wait until they serve."""
    await plane.register(spec(min_instances=instances))
    await plane.until_serving(instances)


async def last_scale(plane: ControlPlane) -> ScaleRecord:
    return (await plane.records())[-1]


def names(record: ScaleRecord) -> list[str]:
    return [phase.name for phase in record.phases]


def host(plane: ControlPlane, index: int = 0) -> FakeHost:
    found = plane.fabric[f"host-{index}"]
    assert isinstance(found, FakeHost)
    return found


def kept(plane: ControlPlane, index: int = 0) -> list[tuple[str, str]]:
    """The name and version of each model of which a host has a whole copy."""
    return sorted((one.model, one.version) for one in host(plane, index).holdings if one.ready)


async def entry_of(plane: ControlPlane, model: str) -> ModelEntry:
    return next(entry for entry in (await plane.snapshot()).models if entry.spec.name == model)


async def copies(plane: ControlPlane, model: str) -> list[str]:
    return (await entry_of(plane, model)).copies
