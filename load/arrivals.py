"""A load made up from a seed: Poisson arrivals in phases of different rates."""

import random
from collections.abc import Sequence

import msgspec

from livescale.load.trace import Arrival, Trace


class Phase(msgspec.Struct, frozen=True):
    """A stretch of the load: `rate` requests a second for `seconds`."""

    name: str
    seconds: float
    rate: float


class Shape(msgspec.Struct, frozen=True):
    """Mean lengths in tokens; single requests lie between half and one and a half of them."""

    prompt_tokens: int
    output_tokens: int


def poisson(phases: Sequence[Phase], shape: Shape, seed: int) -> Trace:
    """Arrivals of all phases one after the other; the same seed gives the same trace."""
    chance = random.Random(seed)
    trace: list[Arrival] = []
    start = 0.0
    for phase in phases:
        # Poisson arrivals have no memory, so each phase may start afresh.
        at = start + gap(chance, phase.rate)
        while at < start + phase.seconds:
            trace.append(Arrival(at, vary(chance, shape.prompt_tokens), vary(chance, shape.output_tokens)))
            at += gap(chance, phase.rate)
        start += phase.seconds
    return tuple(trace)


def calm_burst_calm(seconds: float, calm_rate: float, burst_rate: float) -> tuple[Phase, Phase, Phase]:
    """A quarter calm, a third burst, and calm again until the end."""
    before, burst = seconds / 4, seconds / 3
    return (
        Phase("before", before, calm_rate),
        Phase("burst", burst, burst_rate),
        Phase("after", seconds - before - burst, calm_rate),
    )


def gap(chance: random.Random, rate: float) -> float:
    return chance.expovariate(rate) if rate > 0 else float("inf")


def vary(chance: random.Random, mean: int) -> int:
    return max(1, round(mean * chance.uniform(0.5, 1.5)))
