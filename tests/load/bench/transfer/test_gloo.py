"""`livescale bench transfer --case gloo`: what it refuses, and a small run over real processes in namespaces."""

import os

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from livescale.load.bench.samples import BenchFailed
from livescale.load.bench.transfer.command import transfer
from livescale.load.bench.transfer.gloo import chained, grouped
from livescale.load.bench.transfer.node_messages import Broadcast
from livescale.load.machines import namespaces, network, owners
from livescale.shared.runtime.settings import LinkSettings
from tests.load.bench.bench_output import records_of

BARS = {1: 0.9, 2: 1.5}  # fewer processes than in earnest
ASKED = ["--case", "gloo", "--megabytes", "17", "--rate", "50"]


def test_without_root_it_is_refused_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result = CliRunner().invoke(transfer, ["--case", "plan-time", *ASKED])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "--case gloo: network namespaces need root" in result.stderr


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.usefixtures("can_emulate")
def test_it_prints_chain_and_broadcast_for_each_number_of_receivers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("livescale.load.bench.transfer.gloo.BARS", BARS)
    result = CliRunner().invoke(transfer, ASKED)
    records = {record["case"]: record for record in records_of(result)}
    assert list(records) == [
        case
        for receivers in BARS
        for case in (f"chain of {receivers}, shaped by the kernel", f"gloo broadcast to {receivers}, against a chain")
    ], result.output
    assert all(record["value"] > 0 for record in records.values())
    assert [record["bar"] for record in records.values() if record["bar"]] == list(BARS.values())
    assert os.getpid() not in owners()


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.usefixtures("can_emulate")
def test_both_deliver_what_was_sent_and_a_broadcast_of_other_bytes_is_reported() -> None:
    with network(["a", "b"], "1gbit") as machines, grouped(machines, [1 << 20, 1 << 18]) as group:
        with chained(machines, LinkSettings(transport="socket", share_memory="off"), [1 << 20]) as chain:
            assert [node.id for node in chain.nodes] == ["node-0", "node-1"]
        assert sorted(group.run({1: Broadcast(group.blocks), 0: Broadcast(group.blocks)})) == [0, 1]
        one, two = group.blocks
        with pytest.raises(BenchFailed, match="process 1: the broadcast delivered other bytes"):
            group.run({1: Broadcast((one, replace(two, checksum=1))), 0: Broadcast(())})
    assert [name for name in namespaces() if name.startswith(f"livescale-{os.getpid()}-")] == []
