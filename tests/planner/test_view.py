"""The view of the cluster: the registry's snapshot, with what workers have said since."""

import asyncio
from typing import Literal

import pytest
from msgspec.structs import replace

from livescale.services.planner.view import FRESH_SECONDS, ClusterView
from livescale.shared.bus.contract import Context, Endpoint, Refusal, ServiceInfo
from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import AskSnapshot, Named, Snapshot
from livescale.shared.messages.transfers import InstanceServing
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import MANIFEST, SNAPSHOT
from tests.clocks import LoopClock
from tests.control.fakes import manifest
from tests.planner.samples import VERSION, serving, snapshot, spare


class Registry:
    """Answers with this snapshot, and counts how often it is asked for a manifest."""

    def __init__(self, pool: Snapshot) -> None:
        self.pool = pool
        self.manifests = 0

    async def snapshot(self, ask: AskSnapshot, context: Context) -> Snapshot:
        return self.pool

    async def manifest(self, named: Named, context: Context) -> Manifest:
        self.manifests += 1
        return manifest(self.pool.models[0].version or "")


async def viewed(pool: Snapshot) -> tuple[ClusterView, Registry, LoopClock]:
    clock = LoopClock(epoch=0.0)
    broker, registry = LocalBroker(clock), Registry(pool)
    endpoints = [Endpoint(SNAPSHOT, registry.snapshot), Endpoint(MANIFEST, registry.manifest)]
    await broker.connect().serve(ServiceInfo("registry", "r", "answers"), endpoints)
    return ClusterView(broker.connect(), clock), registry, clock


def test_what_a_worker_said_itself_is_newer_than_the_snapshot() -> None:
    async def main() -> None:
        cluster, _, _ = await viewed(snapshot(serving("a"), spare("b")))
        cluster.on_report(serving("b"))
        cluster.on_report(replace(spare("a"), epoch=0))  # of a process before this one
        view = await cluster.look("m")
        assert [(one.id, one.state) for one in view.snapshot.workers] == [("a", "serving"), ("b", "serving")]

    virtual_time.run(main())


def test_a_report_of_an_instance_that_has_ended_came_late() -> None:
    async def main() -> None:
        cluster, _, _ = await viewed(snapshot(serving("a")))
        old, new = (replace(serving("a"), instance=name) for name in ("i-1", "i-2"))
        assert cluster.on_report(old)
        cluster.on_instance(InstanceServing(instance="i-1", model="m", worker="a", plan_id="p", what="spare", at=1.0))
        assert cluster.on_report(new)
        assert not cluster.on_report(old)
        assert [one.instance for one in cluster.reports()] == ["i-2"]
        assert cluster.on_report(replace(old, state="loading"))  # an order to load it came once more
        assert cluster.on_report(old)

    virtual_time.run(main())


def test_what_an_instance_has_become_counts_before_its_worker_reports_it() -> None:
    def became(worker: str, what: Literal["serving", "spare"], instance: str) -> InstanceServing:
        return InstanceServing(instance=instance, model="m", worker=worker, plan_id="p", what=what, at=1.0)

    async def main() -> None:
        cluster, _, _ = await viewed(snapshot(serving("a"), serving("b"), serving("c")))
        for worker, state in (("a", "live"), ("b", "draining"), ("c", "draining")):
            cluster.on_report(replace(serving(worker), state=state, instance=f"of {worker}"))
        for event in (became("a", "serving", "of a"), became("b", "spare", "of b"), became("c", "spare", "another")):
            cluster.on_instance(event)
        cluster.on_instance(became("unknown", "serving", "of unknown"))
        view = await cluster.look("m")
        seen = [(one.id, one.state, one.instance) for one in view.snapshot.workers]
        assert seen == [("a", "serving", "of a"), ("b", "spare", None), ("c", "draining", "of c")]

    virtual_time.run(main())


def test_a_worker_that_has_not_reported_for_long_is_silent() -> None:
    async def main() -> None:
        cluster, _, _ = await viewed(snapshot(serving("a"), serving("b"), serving("c")))
        cluster.on_report(serving("a"))
        await asyncio.sleep(FRESH_SECONDS)
        cluster.on_report(serving("b"))
        assert (await cluster.look("m")).silent == {"a", "c"}

    virtual_time.run(main())


def test_the_dead_are_forgotten_but_not_for_the_death_of_an_earlier_process() -> None:
    async def main() -> None:
        cluster, _, _ = await viewed(snapshot())
        for id in ("a", "b"):
            cluster.on_report(replace(serving(id), epoch=2))
        for id, epoch in (("a", 1), ("b", 2)):
            cluster.on_lease(LeaseChanged(service="worker", id=id, epoch=epoch, state="dead", reason="silent", at=1.0))
        assert [report.id for report in cluster.reports()] == ["a"]

    virtual_time.run(main())


def test_a_manifest_is_asked_for_once_a_version() -> None:
    async def main() -> None:
        cluster, registry, _ = await viewed(snapshot(serving("a")))
        for _ in range(3):
            assert (await cluster.look("m")).manifest.version == VERSION
        assert registry.manifests == 1
        registry.pool = replace(registry.pool, models=[replace(registry.pool.models[0], version="newer")])
        assert (await cluster.look("m")).manifest.version == "newer"
        assert registry.manifests == 2

    virtual_time.run(main())


def test_a_model_that_is_not_registered_and_a_registry_that_is_away_are_told_apart() -> None:
    async def main() -> None:
        cluster, _, clock = await viewed(snapshot(serving("a")))
        with pytest.raises(Refusal, match="model 'other' is not registered") as unknown:
            await cluster.look("other")
        away = ClusterView(LocalBroker(clock).connect(), clock)
        with pytest.raises(Refusal, match="the registry does not answer") as absent:
            await away.look("m")
        with pytest.raises(Refusal, match="the registry does not answer"):
            await away.keep("m")
        assert (unknown.value.code, absent.value.code) == (404, 503)

    virtual_time.run(main())
