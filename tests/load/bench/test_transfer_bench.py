"""`livescale bench transfer` with a small set, over real processes."""

import pytest
from click.testing import CliRunner

from livescale.load.bench.fleet import BenchFailed, started
from livescale.load.bench.nodes import Done
from livescale.load.bench.record import Printer
from livescale.load.bench.shaping import CASES
from livescale.load.bench.transfer import HopPass, receiver_rows, transfer
from livescale.shared.runtime.settings import LinkSettings
from tests.load.bench.printed import records_in
from tests.made import tiny

pytestmark = pytest.mark.system


@pytest.mark.parametrize("transport", ["ucx", pytest.param("socket", marks=pytest.mark.slow)])
def test_it_prints_a_line_for_the_hop_and_for_each_chain(transport: str) -> None:
    flags = ["--transport", transport, "--megabytes", "30", "--passes", "1", "--rate", "200"]
    cases = ["--case", "hop", "--case", "chains"]
    result = CliRunner().invoke(transfer, [*flags, *cases, "--receivers", "1", "--receivers", "3"])
    records = {record["case"]: record for record in records_in(result.stdout)}
    assert {"memcpy", "hop", "hop, checksums", "chain of 1", "chain of 3"} <= set(records), result.output
    assert records["chain of 3"]["against"] == pytest.approx(2 * (16 << 20) / 200e6, rel=1e-3)
    assert records["chain of 3"]["ratio"] >= 0.9
    assert result.exit_code == (0 if all(record["ok"] is not False for record in records.values()) else 1)


SIZES = [10**8] * 10  # a gigabyte


def hop_pass(copy: float, check: float, bare: float, checked: float, besides: float = 0.01) -> HopPass:
    """CPU seconds of the receiver, for a gigabyte; `besides`: what each hop takes whatever it brings."""
    firsts = ((cpu - besides) / len(SIZES) + besides for cpu in (bare, checked))
    cpus = (copy, check, bare, checked, *firsts)
    return HopPass(*({0: Done(0.0, 1.0, 0.01), 1: Done(0.0, 1.0, cpu)} for cpu in cpus))


def test_a_receiver_is_held_against_a_copy_and_a_checksum_of_the_same_run() -> None:
    passes = [hop_pass(0.16, 0.1, 0.19, 0.32)] * 3
    found = {one.case: one for one in receiver_rows(Printer("transfer"), passes, SIZES, has_bars=True)}
    copied = found["hop, receiver's CPU by bytes / copy"]
    assert (copied.ratio, copied.bar, copied.ok) == (pytest.approx(1.125), 1.15, True)
    verified = found["hop, checksums, receiver's CPU by bytes / copy and checksum"]
    assert (verified.ratio, verified.ok) == (pytest.approx(0.31 / 0.26), False)
    whole = found["hop, receiver's CPU in all / copy"]
    assert (whole.ratio, whole.bar, whole.ok) == (pytest.approx(0.19 / 0.16), 1.15, False)
    assert found["hop, receiver's CPU besides bytes"].value == pytest.approx(10.0)
    absolute = found["hop, receiver's CPU in all"]
    assert (absolute.against, absolute.ratio, absolute.ok) == (0.15, pytest.approx(0.19 / 0.15), None)
    sockets = receiver_rows(Printer("transfer"), passes, SIZES, has_bars=False)
    assert all(one.ok is None for one in sockets)


def test_by_how_much_the_absolute_figure_is_missed_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    list(receiver_rows(Printer("transfer"), [hop_pass(0.16, 0.1, 0.18, 0.2)], SIZES, has_bars=True))
    told = capsys.readouterr().err
    assert "hop: the receiver takes 20% more CPU than 0.15 s/GB" in told
    assert "checksums: the receiver" not in told


@pytest.mark.slow
def test_it_prints_a_line_for_each_way_in_which_flows_meet() -> None:
    result = CliRunner().invoke(transfer, ["--case", "shaping", "--megabytes", "17", "--rate", "50"])
    records = records_in(result.stdout)
    assert [record["case"] for record in records] == [f"shaping, {case}" for case in CASES], result.output
    assert all(record["ratio"] > 0 for record in records), result.output
    assert result.exit_code == (0 if all(record["ok"] for record in records) else 1)


@pytest.mark.slow
def test_it_prints_what_sharing_takes_against_sending() -> None:
    result = CliRunner().invoke(transfer, ["--case", "share", "--megabytes", "30", "--passes", "1"])
    records = records_in(result.stdout)
    cases = ["share, 1 receiver", "share, 3 receivers"]
    assert [record["case"] for record in records] == [name for case in cases for name in (case, f"{case}, CPU of all")]
    assert all(record["ratio"] > 0 for record in records), result.output


@pytest.mark.slow
def test_it_prints_how_fast_a_source_decodes_while_it_feeds_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("livescale.load.bench.disturbance.kept_model", lambda size, tell: tiny("llama"))
    result = CliRunner().invoke(transfer, ["--case", "disturbance", "--rate", "10", "--passes", "1"])
    records = records_in(result.stdout)
    cases = ["decoding, undisturbed", "decoding, feeding 3 by chain", "decoding, feeding 3 by fan-out"]
    loops = [f"event loop of the source, {case}" for case in ("undisturbed", "chain", "fan-out")]
    assert [record["case"] for record in records] == [*2 * cases, *loops], result.output
    assert all(record["value"] > 0 for record in records), result.output
    assert [record["bar"] for record in records if record["case"] == cases[1]] == [0.93, None]


def test_a_process_that_cannot_open_its_link_is_reported() -> None:
    settings = LinkSettings(bind="203.0.113.7")
    with pytest.raises(BenchFailed, match=r"process 0: bind: .*203\.0\.113\.7"), started(1, settings, [4096]):
        pass
