"""All services together under virtual time: a scale-out under load, deaths in it, and the same run every time."""

import asyncio
import os
import subprocess
import sys
from functools import cache

import msgspec
import pytest

from livescale.load.records import find_fault
from livescale.load.simulate.cluster import virtual_cluster
from livescale.load.simulate.start import quiet
from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.simulation import virtual_time
from tests.load.simulate.clusters import settings, undisturbed
from tests.load.simulate.scale_out import ASKS, Victim, played

once = cache(played)


@pytest.mark.parametrize("victim", ["nobody", "target", "source"])
def test_a_live_scale_out_serves_every_request_with_the_tokens_of_an_undisturbed_one(victim: Victim) -> None:
    outcome = once(victim)
    assert [find_fault(record) for record in outcome.records] == [None] * len(ASKS)
    for record in outcome.records:
        assert record.token_ids == undisturbed(ASKS[record.index], outcome.version)
    leases = [event for event in outcome.events if event.subject.startswith("evt.lease")]
    deaths = [event.subject for event in leases if b'"dead"' in event.data]
    assert deaths == ([f"evt.lease.{outcome.lost}"] if outcome.lost else [])


def test_two_runs_of_one_seed_are_the_same() -> None:
    first, second = once("target"), played("target")
    assert {event.subject.split(".")[1] for event in first.events if event.subject.startswith("evt")} >= {
        *("decision", "plan", "transfer", "layer", "instance", "lease")
    }
    assert {event.subject.split(".")[0] for event in first.events} == {"evt", "tok", "req"}
    for one, other in zip(first.events, second.events, strict=False):
        assert one == other  # the first that differs
    assert first.digest == second.digest
    assert first.records == second.records


def test_a_run_is_the_same_in_a_process_that_hashes_otherwise() -> None:
    code = "from tests.load.simulate.scale_out import played; print(played('target').digest)"
    environment = {**os.environ, "PYTHONHASHSEED": "7" if os.environ.get("PYTHONHASHSEED") != "7" else "8"}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.split()[-1] == once("target").digest


def test_a_process_leaves_or_dies_and_is_started_again() -> None:
    async def main() -> list[tuple[int, LeaseChanged]]:
        async with virtual_cluster(settings(2)) as made:
            await asyncio.sleep(1.0)
            await made.stop("worker-1")
            await asyncio.sleep(0.1)
            await made.kill("host-1")
            await asyncio.sleep(3.0)
            for id in ("worker-1", "host-1"):
                made.start(id)
            await asyncio.sleep(1.0)
            events = made.log.of("evt.lease")
            return [(round(event.at), msgspec.json.decode(event.data, type=LeaseChanged)) for event in events]

    with quiet():
        leases = virtual_time.run(main())
    told = {id: [(lease.state, at) for at, lease in leases if lease.id == id] for id in ("worker-1", "host-1")}
    assert told == {
        "worker-1": [("alive", 0), ("dead", 1), ("alive", 4)],
        "host-1": [("alive", 0), ("suspect", 3), ("dead", 4), ("alive", 4)],
    }


def test_another_seed_is_another_run() -> None:
    async def idle(seed: int) -> str:
        async with virtual_cluster(settings(2, seed)) as made:
            await asyncio.sleep(2.0)
            assert made.log.of("evt.lease")
            return made.log.digest()

    with quiet():
        digests = [virtual_time.run(idle(seed)) for seed in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]
