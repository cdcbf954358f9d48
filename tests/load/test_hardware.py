"""The machine that figures are of."""

import pytest

from livescale.load.hardware import Hardware, HardwareWatch, busy_share, parse_cpu, parse_times, stolen_share

X86 = """processor\t: 0
model name\t: AMD EPYC 9004
flags\t\t: fpu avx2 avx512f avx512_bf16 fma

processor\t: 1
model name\t: AMD EPYC 9004
flags\t\t: fpu
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd bf16\nCPU part\t: 0xd4f\n"


def stat(user: int, idle: int, stolen: int) -> str:
    return f"cpu  {user} 0 0 {idle} 0 0 0 {stolen} 9 9\ncpu0 1 2 3\n"


def test_the_cpu_is_named_with_its_cores_and_the_flags_that_matter() -> None:
    assert parse_cpu(X86) == ("AMD EPYC 9004", 2, ["avx512_bf16", "avx512f", "avx2", "fma"])
    name, cores, flags = parse_cpu(ARM)
    assert name.endswith("0xd4f")
    assert (cores, flags) == (1, ["bf16", "asimd"])


def test_stolen_time_is_a_share_of_what_was_wanted_however_much_was_idle() -> None:
    before, after = parse_times(stat(100, 1_000, 10)), parse_times(stat(190, 900_000, 20))
    assert stolen_share(before, after) == pytest.approx(0.1)
    assert stolen_share(before, before) == 0.0
    assert parse_times("") is None
    assert stolen_share(None, after) is None


@pytest.mark.parametrize(("stolen", "warns"), [(0.0, False), (0.05, False), (0.051, True), (None, False)])
def test_above_five_percent_of_stolen_time_there_is_a_warning(stolen: float | None, warns: bool) -> None:
    hardware = Hardware("CPU", 2, ["avx2"], stolen)
    assert (hardware.warning() is not None) == warns
    assert len(hardware.lines()) == 1 + warns
    assert ("not known" in hardware.sentence()) == (stolen is None)


def test_only_what_was_stolen_since_the_watch_began_counts() -> None:
    stats = iter((stat(100, 0, 50), stat(170, 0, 80)))
    watch = HardwareWatch(lambda name: X86 if name == "cpuinfo" else next(stats))
    assert watch.seen().stolen == pytest.approx(0.3)


def test_this_machine_can_be_read() -> None:
    seen = HardwareWatch().seen()
    assert seen.cpu
    assert seen.cores > 0
    assert seen.stolen is None or 0 <= seen.stolen <= 1


def test_the_machine_is_busy_for_all_ticks_that_are_not_idle() -> None:
    before, after = parse_times("cpu 10 0 5 100 5 0 0 0 0 0\ncpu0 1"), parse_times("cpu 30 0 15 120 15 0 0 10 0 0\n")
    assert before is not None
    assert after is not None
    assert ((before.wanted, before.all), (after.wanted, after.all)) == ((15, 120), (55, 190))
    assert busy_share(before, after) == pytest.approx(40 / 70)
