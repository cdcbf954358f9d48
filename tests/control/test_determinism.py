"""The control plane decides the same, and says the same, in every run."""

import asyncio

import pytest

from livescale.shared.runtime.settings import LiveName
from livescale.shared.simulation import virtual_time
from tests.control.plane import Plane, control_plane, spec


async def burst(plane: Plane) -> None:
    """Calm, a burst that scales out, a death, a drain, a second model, an outage."""
    for index in range(3):
        await plane.gateway.submit(f"calm-{index}", prompt=50 + index, max_tokens=20)
        await asyncio.sleep(0.3)
    await asyncio.gather(*(plane.gateway.submit(f"burst-{i}", prompt=20 + i, max_tokens=60) for i in range(30)))
    await plane.register(spec("n"))
    await asyncio.sleep(1.0)
    await plane.kill("worker-1")
    await asyncio.gather(*(plane.gateway.submit(f"more-{i}", model="mn"[i % 2], max_tokens=40) for i in range(10)))
    await asyncio.sleep(3.0)
    plane.broker.down()
    await asyncio.sleep(1.0)
    plane.broker.up()
    await asyncio.sleep(10.0)


def run(live: LiveName) -> list[tuple[str, bytes]]:
    async def main() -> list[tuple[str, bytes]]:
        async with control_plane(workers=5, live=live) as plane:
            await burst(plane)
            return plane.log

    return virtual_time.run(main(), limit_seconds=300)


@pytest.mark.parametrize("live", ["off", "zigzag"])
def test_two_runs_leave_the_same_log_byte_by_byte(live: LiveName) -> None:
    first, second = run(live), run(live)
    assert len(first) > 500
    assert {subject.split(".")[1] for subject, _ in first if subject.startswith("evt.")} == {
        *("decision", "plan", "transfer", "layer", "instance", "lease", "model")
    }
    assert [subject for subject, _ in first] == [subject for subject, _ in second]
    assert first == second
