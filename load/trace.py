"""Traces: when requests came and how long they were. They are cut, scaled and replayed here, or made up from a seed.

Everything here is a pure function of traces.
"""

import random
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice

import msgspec

WINDOW_FORM = re.compile(r"(?P<start>\d+(\.\d+)?)?(?P<how>[:+])(?P<end>\d+(\.\d+)?)?")

MOST_REQUESTS = 10_000_000  # all of them are held in memory
BURST_RATE = 1.5  # how many times the usual rate a burst has at least


class TraceError(ValueError):
    """A trace that cannot be used; that of a file is named with line and column."""


class Arrival(msgspec.Struct, frozen=True):
    """One request: seconds since the trace's start, and its lengths in tokens."""

    at: float
    prompt_tokens: int
    output_tokens: int


Trace = tuple[Arrival, ...]


class Window(msgspec.Struct, frozen=True):
    """The part of a trace with start <= at < end, in seconds; an `end` of None is the trace's own."""

    start: float = 0.0
    end: float | None = None

    @property
    def seconds(self) -> float | None:
        return None if self.end is None else self.end - self.start


def parse_window(text: str) -> Window:
    """`START:END`, `START+SECONDS`, `START:` or `:END`, all in seconds. Raises ValueError."""
    match = WINDOW_FORM.fullmatch(text.strip())
    if not match or not (match["start"] or match["end"]):
        raise ValueError(f"{text!r} is not a window: write START:END or START+SECONDS, in seconds, as in 60:180")
    start = float(match["start"] or 0)
    end = float(match["end"]) if match["end"] else None
    if match["how"] == "+":
        end = None if end is None else start + end
    if end is not None and end <= start:
        raise ValueError(f"{text!r} is an empty window: its end must come after its start")
    return Window(start, end)


def window(trace: Trace, part: Window) -> Trace:
    """The arrivals inside `part`, its start becoming second 0."""
    return tuple(
        msgspec.structs.replace(arrival, at=arrival.at - part.start)
        for arrival in trace
        if part.start <= arrival.at and (part.end is None or arrival.at < part.end)
    )


def repeat_bursts(trace: Trace, times: int, seconds: float) -> Trace:
    """The trace of so many seconds in which each request of a burst comes `times` times, evenly until the next one.

    A burst is a second with half as many requests again as there are on average.
    """
    counts = Counter(int(arrival.at) for arrival in trace)
    usual = len(trace) / seconds
    found = list[Arrival]()
    for number, arrival in enumerate(trace, 1):
        after = trace[number].at if number < len(trace) else seconds
        copies = times if counts[int(arrival.at)] > BURST_RATE * usual else 1
        step = (after - arrival.at) / copies
        found += [msgspec.structs.replace(arrival, at=arrival.at + copy * step) for copy in range(copies)]
    return tuple(found)


def upscale(trace: Trace, factor: float, seed: int, until: float | None = None) -> Trace:
    """`factor` times as many requests in the same time (TraceUpscaler, EuroSys'24); below 1, as many fewer.

    Each stamp is repeated floor(factor) times and once more with probability frac(factor); the lengths follow in
    the trace's own order, so both the bursts' shape and the lengths' sequence stay. It ends with the trace's
    lengths: a whole trace upscaled by 2 lasts half as long. `until` cuts the stamps (seconds) while the lengths
    still come from the whole trace, which is how a window is filled. Raises ValueError.
    """
    if not factor > 0:
        raise ValueError(f"a rate scale must be above 0, not {factor}")
    chance = random.Random(seed)
    stamps = [arrival.at for arrival in trace if until is None or arrival.at < until]
    if factor < 1:
        return tuple(arrival for arrival in islice(trace, len(stamps)) if chance.random() < factor)
    copies = ([stamp] * (int(factor) + (chance.random() < factor % 1)) for stamp in stamps)
    repeated = (stamp for same in copies for stamp in same)
    return tuple(msgspec.structs.replace(arrival, at=at) for at, arrival in zip(repeated, trace, strict=False))


def scale_lengths(trace: Trace, factor: float) -> Trace:
    """Prompts and outputs `factor` times as long, at least one token each. Raises ValueError."""
    if not factor > 0:
        raise ValueError(f"a length scale must be above 0, not {factor}")
    return tuple(
        Arrival(
            arrival.at, max(1, round(arrival.prompt_tokens * factor)), max(1, round(arrival.output_tokens * factor))
        )
        for arrival in trace
    )


def replay(trace: Trace, part: Window, rate_scale: float, length_scale: float, seed: int) -> Trace:
    """The stretch `part`, with `rate_scale` times its requests, each `length_scale` times as long."""
    # What comes after the window is needed too: upscaling takes more lengths than the window has.
    following = window(trace, Window(part.start))
    return scale_lengths(upscale(following, rate_scale, seed, until=part.seconds), length_scale)


def fit(trace: Trace, context: int) -> Trace:
    """The trace for a model of `context` tokens: outputs cut to half of it, prompts to what is left."""
    cut = []
    for arrival in trace:
        # Outputs are cut to half only where they alone would fill the context.
        output = min(arrival.output_tokens, context // 2)
        cut.append(Arrival(arrival.at, min(arrival.prompt_tokens, context - output), output))
    return tuple(cut)


def busiest(trace: Trace, seconds: float, share: float = 0.25) -> Window:
    """The `share` of `seconds` in which most tokens arrive; it starts at an arrival, the earliest of equals."""
    width = seconds * share
    stamps = [arrival.at for arrival in trace]
    totals = list(accumulate((arrival.prompt_tokens + arrival.output_tokens for arrival in trace), initial=0))

    def tokens_from(first: int) -> int:
        return totals[bisect_left(stamps, stamps[first] + width)] - totals[first]

    candidates = [first for first in range(len(trace)) if stamps[first] + width <= seconds]
    if not candidates:
        return Window(0.0, width)
    start = stamps[max(candidates, key=tokens_from)]
    return Window(start, start + width)


class LoadPhase(msgspec.Struct, frozen=True):
    """A stretch of the load: `rate` requests a second for `seconds`.

    They come by chance (Poisson), or, where it is `steady`, all at the same distance.
    """

    name: str
    seconds: float
    rate: float
    steady: bool = False

    def times(self, chance: random.Random, start: float = 0.0) -> Iterator[float]:
        """When requests come, in seconds, where the phase begins at `start`."""
        if self.rate <= 0:
            return
        at = start
        while (at := at + (1 / self.rate if self.steady else chance.expovariate(self.rate))) < start + self.seconds:
            yield at


class RequestShape(msgspec.Struct, frozen=True):
    """Mean lengths in tokens; single requests lie between half and one and a half of them."""

    prompt_tokens: int
    output_tokens: int


def arrivals_in(phases: Sequence[LoadPhase], shape: RequestShape, seed: int) -> Trace:
    """Arrivals of all phases one after the other; the same seed gives the same trace.

    Raises TraceError for more requests than are held in memory, endless ones among them.
    """
    requests = sum(phase.seconds * phase.rate for phase in phases if phase.rate)
    if not requests <= MOST_REQUESTS:
        raise TraceError(
            f"the load has more than {MOST_REQUESTS:,} requests, seconds times rate: "
            "give it fewer seconds, or a lower rate"
        )
    chance = random.Random(seed)
    trace: list[Arrival] = []
    start = 0.0
    for phase in phases:
        # Poisson arrivals have no memory, so each phase may start afresh.
        for at in phase.times(chance, start):
            trace.append(Arrival(at, vary(chance, shape.prompt_tokens), vary(chance, shape.output_tokens)))
        start += phase.seconds
    return tuple(trace)


def calm_burst_calm(seconds: float, calm_rate: float, burst_rate: float) -> tuple[LoadPhase, LoadPhase, LoadPhase]:
    """A quarter calm, a third burst, and calm again until the end."""
    before, burst = seconds / 4, seconds / 3
    return (
        LoadPhase("before", before, calm_rate),
        LoadPhase("burst", burst, burst_rate),
        LoadPhase("after", seconds - before - burst, calm_rate),
    )


def vary(chance: random.Random, mean: int) -> int:
    return max(1, round(mean * chance.uniform(0.5, 1.5)))
