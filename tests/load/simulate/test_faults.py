"""Faults of a simulated cluster: each befalls whom it names, is over when it should be, and requests get through."""

import asyncio
import math

import pytest

from livescale.load.records import find_fault
from livescale.load.simulate.client import replay
from livescale.load.simulate.cluster import VirtualCluster, virtual_cluster
from livescale.load.simulate.faults import ClusterFault, ClusterFaultInjector
from livescale.load.simulate.start import quiet, register
from livescale.shared.simulation import virtual_time
from tests.load.simulate.clusters import PATH, asks, decode_leases, model, registered, settings, until_serving

SECONDS = 12.0


def leases(*faults: ClusterFault) -> dict[str, list[tuple[str, int]]]:
    """The changes of each process's lease, with the second, under these faults."""

    async def main() -> dict[str, list[tuple[str, int]]]:
        async with virtual_cluster(settings(2)) as made:
            injector = ClusterFaultInjector(made)
            await asyncio.sleep(1.0)
            injector.start(faults)
            await asyncio.sleep(SECONDS)
            assert [fault for fault, _ in injector.happened] == list(faults)
            assert not injector.crashes
            await injector.close()
            return decode_leases(made)

    with quiet():
        return virtual_time.run(main())


def states(changes: list[tuple[str, int]]) -> list[str]:
    return [state for state, _ in changes]


def test_a_process_that_is_killed_is_started_again_unless_it_is_for_good() -> None:
    told = leases(
        ClusterFault(at=0.0, what="kill", who="worker-1", seconds=5.0),
        ClusterFault(at=0.0, what="kill", who="host-1", seconds=math.inf),
    )
    assert states(told["worker-1"]) == ["alive", "suspect", "dead", "alive"]
    assert told["worker-1"][-1][1] == 6
    assert states(told["host-1"]) == ["alive", "suspect", "dead"]
    assert states(told["worker-0"]) == ["alive"]


@pytest.mark.parametrize("what", ["freeze", "part"])
def test_a_process_that_is_away_for_long_dies_and_comes_back(what: str) -> None:
    told = leases(ClusterFault(at=0.0, what=what, who="worker-1", seconds=5.0))  # type: ignore[arg-type]
    assert states(told["worker-1"]) == ["alive", "suspect", "dead", "alive"]


@pytest.mark.parametrize("what", ["freeze", "part"])
def test_faults_that_overlap_last_until_the_last_is_over(what: str) -> None:
    long = ClusterFault(at=0.0, what=what, who="worker-1", seconds=5.0)  # type: ignore[arg-type]
    short = ClusterFault(at=0.5, what=what, who="worker-1", seconds=0.2)  # type: ignore[arg-type]
    assert states(leases(long, short)["worker-1"]) == ["alive", "suspect", "dead", "alive"]


def test_one_that_is_away_for_a_moment_does_not_die() -> None:
    told = leases(ClusterFault(at=0.0, what="freeze", who="worker-1", seconds=1.0))
    assert states(told["worker-1"]) == ["alive"]


def test_all_of_a_machine_die_together() -> None:
    told = leases(ClusterFault(at=0.0, what="kill", who="h1", seconds=math.inf))
    assert {id for id, changes in told.items() if "dead" in states(changes)} == {"worker-1", "host-1"}


def loaded_at(*faults: ClusterFault) -> float:
    """When the first instance serves, where faults begin before any model is registered."""

    async def main() -> float:
        async with virtual_cluster(settings(2)) as made:
            injector = ClusterFaultInjector(made)
            await asyncio.sleep(1.0)
            injector.start(faults)
            await asyncio.sleep(0.1)
            await register(made, model("m", PATH, min_instances=1, max_instances=1))
            await until_serving(made, 1)
            await injector.close()
            return asyncio.get_running_loop().time()

    with quiet():
        return virtual_time.run(main(), limit_seconds=300)


def test_a_slow_disk_is_slow_for_as_long_as_it_should_be() -> None:
    usual, for_good, for_a_while = (
        loaded_at(
            *(ClusterFault(at=0.0, what="slow-disk", who="host", seconds=seconds, amount=10.0) for seconds in told)
        )
        for told in ((), (math.inf,), (0.05,))
    )
    assert for_good > usual + 5.0
    assert for_a_while == usual


def test_nothing_is_loaded_over_a_link_that_is_cut_until_it_is_mended() -> None:
    usual = loaded_at()
    long = ClusterFault(at=0.0, what="cut-link", who="host", other="worker", seconds=8.0)
    short = ClusterFault(at=0.1, what="cut-link", who="worker-0", other="host-0", seconds=0.2)
    assert loaded_at(long) > max(usual, 9.0)
    assert loaded_at(long, short) > max(usual, 9.0)


def test_parameters_that_come_damaged_are_never_served_and_come_again_once_it_is_over() -> None:
    async def main() -> tuple[int, float]:
        async with virtual_cluster(settings(2)) as made:
            injector = ClusterFaultInjector(made)
            await asyncio.sleep(1.0)
            begun = made.now
            injector.start([ClusterFault(at=0.0, what="damage", who="host", seconds=6.0, amount=1.0)])
            await register(made, model("m", PATH, min_instances=1, max_instances=1))
            await until_serving(made, 1)
            await injector.close()
            told = [event for event in made.log.of("evt.transfer") if b"has checksum" in event.data]
            return len(told), made.now - begun

    with quiet():
        damaged, took = virtual_time.run(main(), limit_seconds=300)
    assert damaged
    assert took > 6.0


@pytest.mark.parametrize("what", ["lose", "delay", "repeat"])
def test_messages_are_disturbed_for_a_while(what: str) -> None:
    async def main() -> list[int]:
        async with virtual_cluster(settings(1)) as made:
            injector = ClusterFaultInjector(made)
            usual = made.broker.delays
            injector.start([ClusterFault(at=0.5, what=what, seconds=1.0, amount=0.5)])  # type: ignore[arg-type]
            await asyncio.sleep(1.0)
            found = [made.broker.delays("any") for _ in range(100)]
            await asyncio.sleep(1.0)
            assert made.broker.delays is usual
            await injector.close()
            return [sum(times == () for times in found), sum(max(times, default=0) > 0.01 for times in found)]

    with quiet():
        lost, late = virtual_time.run(main())
    assert 20 < (lost if what == "lose" else late) < 80


def test_a_process_that_crashes_is_noted_and_started_again() -> None:
    async def main() -> VirtualCluster:
        async with virtual_cluster(settings(1)) as made:
            injector = ClusterFaultInjector(made)
            await asyncio.sleep(1.0)
            made.processes["monitor-0"].actor._policy = None  # type: ignore[attr-defined]
            await registered(made)
            await asyncio.sleep(3.0)
            assert {id for _, id, _ in injector.crashes} == {"monitor-0"}
            assert "monitor-0" in made.processes
            await injector.close()
            return made

    with quiet():
        virtual_time.run(main())


def test_requests_end_as_they_should_while_everything_else_dies() -> None:
    asked = asks(40, rate=8.0, prompt=300, tokens=12)
    services = ("router", "planner", "monitor", "registry", "worker-0", "host-1")
    faults = [ClusterFault(at=number * 1.0, what="kill", who=who) for number, who in enumerate(services)]
    faults += [
        ClusterFault(at=0.5, what="delay", seconds=5.0, amount=0.1),
        ClusterFault(at=2.5, what="freeze", who="worker-1"),
    ]

    async def main() -> list[str | None]:
        async with virtual_cluster(settings(3)) as made:
            injector = ClusterFaultInjector(made)
            await registered(made, min_instances=2)
            injector.start(faults)
            records = await replay(made.gateway, "m", asked)
            await injector.close()
            assert len(injector.happened) == len(faults)
            assert not injector.crashes
            return [find_fault(record) for record in records]

    with quiet():
        assert virtual_time.run(main(), limit_seconds=300) == [None] * len(asked)


def test_a_fault_that_can_befall_nobody_is_refused_and_told_whom_it_could() -> None:
    async def refusal(fault: ClusterFault) -> str:
        async with virtual_cluster(settings(1)) as made:
            with pytest.raises(ValueError, match="cannot happen to") as error:
                ClusterFaultInjector(made).apply(fault)
            return str(error.value)

    with quiet():
        assert virtual_time.run(refusal(ClusterFault(at=0, what="kill", who="worker-9"))).endswith("host-0, worker-0")
        told = virtual_time.run(refusal(ClusterFault(at=0, what="slow-disk", who="worker-0")))
        assert told == "slow-disk cannot happen to 'worker-0'; name one of host-0"
        assert (
            "gateway-0" not in virtual_time.run(refusal(ClusterFault(at=0, what="kill", who="gateway-0"))).split(";")[1]
        )
