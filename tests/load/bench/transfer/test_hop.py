"""What a hop costs its receiver is held against the same work within one process."""

import pytest

from livescale.load.bench.record import RecordPrinter
from livescale.load.bench.transfer.hop import HopPass, receiver_rows
from livescale.load.bench.transfer.node_messages import Done

SIZES = [10**8] * 10  # a gigabyte


def hop_pass(
    copy: float, check: float, bare: float, checked: float, *, read: float | None = None, besides: float = 0.01
) -> HopPass:
    """A pass in which the receiver takes these CPU seconds for a gigabyte; `besides` is what each hop takes in any
    case."""
    bare_first, checked_first = ((cpu - besides) / len(SIZES) + besides for cpu in (bare, checked))
    return HopPass(
        copy=took(copy),
        read={} if read is None else took(read),
        check=took(check),
        bare=took(bare),
        checked=took(checked),
        first_bare=took(bare_first),
        first_checked=took(checked_first),
    )


def took(cpu: float) -> dict[int, Done]:
    return {0: Done(0.0, 1.0, 0.01), 1: Done(0.0, 1.0, cpu)}


def test_a_receiver_is_held_against_a_copy_and_a_checksum_of_the_same_run() -> None:
    passes = [hop_pass(0.16, 0.1, 0.19, 0.32)] * 3
    found = {one.case: one for one in receiver_rows(RecordPrinter("transfer"), passes, SIZES, has_bars=True)}
    copied = found["hop, receiver's CPU by bytes / copy"]
    assert (copied.ratio, copied.bar, copied.ok) == (pytest.approx(1.125), 1.15, True)
    verified = found["hop, checksums, receiver's CPU by bytes / copy and checksum"]
    assert (verified.ratio, verified.ok) == (pytest.approx(0.31 / 0.26), False)
    whole = found["hop, receiver's CPU in all / copy"]
    assert (whole.ratio, whole.bar, whole.ok) == (pytest.approx(0.19 / 0.16), 1.15, False)
    assert found["hop, receiver's CPU besides bytes"].value == pytest.approx(10.0)
    absolute = found["hop, receiver's CPU in all"]
    assert (absolute.against, absolute.ratio, absolute.ok) == (0.15, pytest.approx(0.19 / 0.15), None)
    sockets = receiver_rows(RecordPrinter("transfer"), passes, SIZES, has_bars=False)
    assert all(one.ok is None for one in sockets)


def test_a_receiver_is_held_against_the_kernels_copy_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    passes = [hop_pass(0.14, 0.08, 0.19, 0.29, read=0.18)] * 3
    found = {one.case: one for one in receiver_rows(RecordPrinter("transfer"), passes, SIZES, has_bars=True)}
    kernel = found["kernel's copy, CPU / copy"]
    assert (kernel.ratio, kernel.ok) == (pytest.approx(0.18 / 0.14), None)
    assert found["hop, receiver's CPU in all / copy"].ok is False
    copied = found["hop, receiver's CPU in all / kernel's copy"]
    assert (copied.ratio, copied.bar, copied.ok) == (pytest.approx(0.19 / 0.18), 1.15, True)
    verified = found["hop, checksums, receiver's CPU by bytes / kernel's copy and checksum"]
    assert (verified.ratio, verified.bar, verified.ok) == (pytest.approx(0.28 / 0.26), 1.15, True)
    told = " ".join(capsys.readouterr().err.split())
    assert "the kernel's copy alone takes 1.29 times the CPU of a copy: no hop over CMA keeps a bar of 1.15" in told


def test_without_cma_nothing_is_said_of_the_kernels_copy(capsys: pytest.CaptureFixture[str]) -> None:
    passes = [hop_pass(0.14, 0.08, 0.19, 0.29)]
    rows = receiver_rows(RecordPrinter("transfer"), passes, SIZES, has_bars=True)
    assert not [one.case for one in rows if "kernel" in one.case]
    assert "kernel" not in capsys.readouterr().err


def test_by_how_much_the_absolute_figure_is_missed_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    list(receiver_rows(RecordPrinter("transfer"), [hop_pass(0.16, 0.1, 0.18, 0.2)], SIZES, has_bars=True))
    told = capsys.readouterr().err
    assert "hop: the receiver takes 20% more CPU than 0.15 s/GB" in told
    assert "checksums: the receiver" not in told
