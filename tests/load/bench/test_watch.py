"""A sample that a process was lost in is taken again, whether or not it failed for it."""

import asyncio

import pytest

from livescale.load.bench.samples import BenchFailed, Disturbed
from livescale.load.bench.watch import Losses, Watch, heard
from livescale.shared.messages.membership import LeaseChanged, LeaseState, ServiceName
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import LEASE
from tests.load.bench.test_samples import Shaky


def change(state: LeaseState, id: str = "worker-1", service: ServiceName = "worker") -> LeaseChanged:
    return LeaseChanged(service=service, id=id, epoch=1, state=state, reason="silent for 2.5 s", at=0.0)


async def test_a_sample_without_a_loss_is_what_it_is() -> None:
    losses = Losses()
    losses.hear(change("dead", "gateway-0", "gateway"))
    losses.hear(change("alive"))
    assert await losses.over(Shaky().sample_async) == "sample"
    with pytest.raises(BenchFailed, match="other bytes") as failed:
        await losses.over(Shaky(BenchFailed("other bytes")).sample_async)
    assert not isinstance(failed.value, Disturbed)


async def test_a_sample_with_a_loss_is_none() -> None:
    losses = Losses()
    losses.hear(change("dead"))
    with pytest.raises(Disturbed, match=r"^worker-1 was lost \(silent for 2.5 s\)$"):
        await losses.over(Shaky().sample_async)
    with pytest.raises(Disturbed, match=r"was lost \(silent for 2.5 s\); a scale failed"):
        await losses.over(Shaky(BenchFailed("a scale failed")).sample_async)


async def test_losses_are_heard_on_the_bus_and_wake_who_waits() -> None:
    bus, woken = LocalBroker().connect(), asyncio.Event()
    losses = Losses(on_loss=woken.set)
    async with heard(bus, losses):
        bus.publish(LEASE, change("dead"), id="worker-1")
        await asyncio.wait_for(woken.wait(), 60)
    with pytest.raises(Disturbed):
        losses.check()


async def test_a_worker_that_is_lost_ends_the_waiting_at_once() -> None:
    watch = Watch()
    waiting = asyncio.create_task(watch.until(lambda: False, "pigs fly"))
    await asyncio.sleep(0)
    watch.losses.hear(LeaseChanged(service="worker", id="worker-1", epoch=1, state="dead", reason="silent", at=0.0))
    with pytest.raises(Disturbed, match=r"worker-1 was lost .silent.; it is not yet true that pigs fly"):
        await asyncio.wait_for(waiting, 60)
