"""What is asked for while processes die: calm and burst in turn, so that the system scales out and in."""

import random
from pathlib import Path

import msgspec

from livescale.load.arrivals import Phase, Shape, poisson
from livescale.load.chaos.settings import ChaosSettings
from livescale.load.records import Ask
from livescale.load.trace import Trace, Window, replay
from livescale.load.traces import read_trace

# Seconds, and as many times the mean rate; together they have the mean.
CALM, BURST = (12.0, 0.5), (8.0, 1.75)
TEMPERATURE = 0.8


def make_load(settings: ChaosSettings) -> Trace:
    """The arrivals. Raises TraceError and ValueError."""
    seconds = 60 * settings.minutes
    if settings.trace is None:
        shape = Shape(settings.prompt_tokens, settings.output_tokens)
        return poisson(make_phases(seconds, settings.rate), shape, settings.seed)
    part = Window(0.0, seconds)
    return replay(read_trace(Path(settings.trace)), part, settings.rate_scale, settings.length_scale, settings.seed)


def make_phases(seconds: float, rate: float) -> list[Phase]:
    """Calm, burst, calm, burst ... until the end."""
    phases: list[Phase] = []
    while seconds > 0:
        for name, (length, times) in (("calm", CALM), ("burst", BURST)):
            phases.append(Phase(name, min(length, max(0.0, seconds)), rate * times))
            seconds -= length
    return phases


def seeded(ask: Ask) -> Ask:
    """Every other request is sampled: both ways of choosing have to survive."""
    if ask.index % 2 == 0:
        return ask
    return msgspec.structs.replace(ask, temperature=TEMPERATURE, seed=random.Random(ask.index).getrandbits(31))
