"""Measures what the random systems of `livescale simulate --seeds` take.

It is apart from other measurements, as what checks these systems takes memory of its own.
"""

import msgspec

from livescale.load.scenario.bench.measure import ScaledCpu
from livescale.load.simulate.seeds.run import played


class SeedsRun(msgspec.Struct, frozen=True):
    """Scaled seconds of CPU of each seed, and how many of them failed."""

    seconds: list[float]
    failed: int


def run_seeds(first: int, count: int) -> SeedsRun:
    """Run so many random systems in this process, from seed `first` on, and count their CPU time."""
    cpu, seconds, failed = ScaledCpu(), list[float](), 0
    for seed in range(first, first + count):
        if cpu.is_due():
            cpu.time_loop()
        begun = cpu.seconds()
        failed += bool(played(seed).violations)
        seconds.append(cpu.seconds() - begun)
    cpu.time_loop()
    return SeedsRun([one / cpu.slowness for one in seconds], failed)
