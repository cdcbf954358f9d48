"""Every plan policy carried out by a whole system: real processes behind shaped links."""

from pathlib import Path

import pytest

from livescale.shared.messages.transfers import Plan
from tests.system.conftest import started
from tests.system.scaling import WORKERS, ScalingSystem, watching
from tests.system.under_load import ExpectedStreams, SystemUnderLoad, at_once

pytestmark = [pytest.mark.system, pytest.mark.slow]

RATE = 8e6  # bytes a second: half a second for a whole model
STREAMS, TOKENS_EACH = 8, 16
BETWEEN_THE_TWO = ("worker-2", "worker-3"), ("worker-3", "worker-2")

TOPOLOGY = """
hosts:
  - name: alone
    count: 2
    memory: 2 GiB
    nic: 8 MB/s
    disk: 1 GB/s
    gpus: [{memory: 1 GiB, host-link: 4 MB/s}]
  - name: both
    memory: 2 GiB
    nic: 8 MB/s
    disk: 1 GB/s
    gpus: [{count: 2, memory: 1 GiB, nic: 8 MB/s, host-link: 4 MB/s, scale-up: 100 MB/s}]
"""

TWO_HOSTS = """
hosts:
  - name: a
    count: 2
    memory: 2 GiB
    nic: 8 MB/s
    disk: 5 MB/s
    gpus: [{memory: 1 GiB, host-link: 10 MB/s}]
"""


@pytest.fixture(scope="module")
def streams() -> ExpectedStreams:
    return at_once("m", "float32", STREAMS, TOKENS_EACH)


async def grow(scaling: ScalingSystem, instances: int) -> Plan:
    """So many instances; the plan by which the last of them got the model, each byte of it once."""
    scaling.watch.forget()
    await scaling.have(instances)
    await scaling.watch.until(lambda: len(scaling.watch.serving()) == instances, f"{instances} serve")
    record = next(reversed(scaling.watch.records.values()))
    assert record.plan is not None
    targets = [rank for instance in record.plan.instances for rank in instance.ranks]
    assert [scaling.watch.received_bytes(target) for target in targets] == [scaling.model_bytes] * len(targets)
    assert sorted(record.plan.predicted) == sorted(targets)
    return record.plan


@pytest.mark.parametrize("policy", ["binomial", "fanout", "tree"])
async def test_a_plan_of_the_policy_that_is_set_brings_everyone_all_and_they_serve(
    tmp_path: Path, streams: ExpectedStreams, policy: str
) -> None:
    with started(tmp_path, "--workers", str(WORKERS), "--link-rate", str(RATE), "--plan-policy", policy) as system:
        async with watching(SystemUnderLoad(system, streams)) as scaling:
            plan = await grow(scaling, WORKERS)
            senders = {flow.sender for flow in plan.flows}
            targets = {flow.receiver for flow in plan.flows}
            assert all(bool(flow.steps) == (policy == "binomial") for flow in plan.flows)
            assert bool(senders & targets) == (policy == "binomial"), "of two sources, neither tree is deep"
            await scaling.check(policy, scaling.load())
        told = system.command("why", "m").stdout
        assert all(f"{target} whole after " in told for target in targets)
        assert " s predicted" in told


async def test_two_gpus_of_a_domain_take_a_half_each_and_gather_the_rest(
    tmp_path: Path, streams: ExpectedStreams
) -> None:
    (tmp_path / "lab.yaml").write_text(TOPOLOGY)
    options = "--workers", str(WORKERS), "--topology", str(tmp_path / "lab.yaml"), "--shaped"
    with started(tmp_path, *options) as system:
        async with watching(SystemUnderLoad(system, streams)) as scaling:
            await grow(scaling, 2)
            plan = await grow(scaling, WORKERS)
            lanes = {(flow.lane, flow.lanes) for flow in plan.flows}
            assert lanes == {(0, 2), (1, 2)}
            pairs = {(flow.sender, flow.receiver) for flow in plan.flows}
            assert pairs == {("worker-0", "worker-2"), ("worker-1", "worker-3"), *BETWEEN_THE_TWO}
            await scaling.check("lanes", scaling.load())


async def test_a_host_that_has_no_copy_in_memory_reads_its_own_from_disk_and_sends_as_it_reads(
    tmp_path: Path, streams: ExpectedStreams
) -> None:
    (tmp_path / "lab.yaml").write_text(TWO_HOSTS)
    options = "--workers", "2", "--topology", str(tmp_path / "lab.yaml"), "--shaped", "--plan-policy", "local"
    with started(tmp_path, *options) as system:
        async with watching(SystemUnderLoad(system, streams)) as scaling:
            plan = await grow(scaling, 2)
            [flow] = plan.flows
            assert (flow.sender, flow.receiver, flow.from_disk) == ("host-1", "worker-1", True)
            assert plan.predicted["worker-1"] == pytest.approx(scaling.model_bytes / 5e6)
            await scaling.check("local", scaling.load())
        told = system.command("why", "m").stdout
        assert "from host-1: a host that reads the model from its disk" in told
        assert "worker-1 whole after " in told
