"""`livescale bench transfer` with a small set, over real processes."""

import json

import pytest
from click.testing import CliRunner

from load.bench.fleet import BenchFailed, started
from load.bench.shaping import CASES
from load.bench.transfer import transfer
from shared.settings import LinkSettings
from tests.made import tiny

pytestmark = pytest.mark.system


@pytest.mark.parametrize("transport", ["ucx", pytest.param("socket", marks=pytest.mark.slow)])
def test_it_prints_a_line_for_the_hop_and_for_each_chain(transport: str) -> None:
    flags = ["--transport", transport, "--megabytes", "30", "--passes", "1", "--rate", "200"]
    cases = ["--case", "hop", "--case", "chains"]
    result = CliRunner().invoke(transfer, [*flags, *cases, "--receivers", "1", "--receivers", "3"])
    records = {record["case"]: record for record in map(json.loads, result.stdout.splitlines())}
    assert {"memcpy", "hop", "hop, checksums", "chain of 1", "chain of 3"} <= set(records), result.output
    assert records["chain of 3"]["against"] == pytest.approx(2 * (16 << 20) / 200e6, rel=1e-3)
    assert records["chain of 3"]["ratio"] >= 0.9
    assert result.exit_code == (0 if all(record["ok"] is not False for record in records.values()) else 1)


@pytest.mark.slow
def test_it_prints_a_line_for_each_way_in_which_flows_meet() -> None:
    result = CliRunner().invoke(transfer, ["--case", "shaping", "--megabytes", "17", "--rate", "50"])
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert [record["case"] for record in records] == [f"shaping, {case}" for case in CASES], result.output
    assert all(record["ratio"] > 0 for record in records), result.output
    assert result.exit_code == (0 if all(record["ok"] for record in records) else 1)


@pytest.mark.slow
def test_it_prints_what_sharing_takes_against_sending() -> None:
    result = CliRunner().invoke(transfer, ["--case", "share", "--megabytes", "30", "--passes", "1"])
    records = [json.loads(line) for line in result.stdout.splitlines()]
    cases = ["share, 1 receiver", "share, 3 receivers"]
    assert [record["case"] for record in records] == [name for case in cases for name in (case, f"{case}, CPU of all")]
    assert all(record["ratio"] > 0 for record in records), result.output


@pytest.mark.slow
def test_it_prints_how_fast_a_source_decodes_while_it_feeds_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("load.bench.disturbance.kept_model", lambda size, tell: tiny("llama"))
    result = CliRunner().invoke(transfer, ["--case", "disturbance", "--rate", "10", "--passes", "1"])
    records = [json.loads(line) for line in result.stdout.splitlines()]
    cases = ["decoding, undisturbed", "decoding, feeding 3 by chain", "decoding, feeding 3 by fan-out"]
    loops = [f"event loop of the source, {case}" for case in ("undisturbed", "chain", "fan-out")]
    assert [record["case"] for record in records] == [*2 * cases, *loops], result.output
    assert all(record["value"] > 0 for record in records), result.output
    assert [record["bar"] for record in records if record["case"] == cases[1]] == [0.93, None]


def test_a_process_that_cannot_open_its_link_is_reported() -> None:
    settings = LinkSettings(bind="203.0.113.7")
    with pytest.raises(BenchFailed, match=r"process 0: bind: .*203\.0\.113\.7"), started(1, settings, [4096]):
        pass
