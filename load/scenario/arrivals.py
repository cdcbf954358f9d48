"""When the requests of a scenario come: by a trace, or at a rate with bursts."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from livescale.load.trace import (
    LoadPhase,
    RequestShape,
    Trace,
    Window,
    arrivals_in,
    parse_window,
    repeat_bursts,
    replay,
)
from livescale.load.trace_files import read_trace
from livescale.shared.runtime.settings import Settings

Rate = Annotated[float, Meta(ge=0, le=1e6)]
Seconds = Annotated[float, Meta(gt=0, le=1e7)]
Moment = Annotated[float, Meta(ge=0, le=1e7)]
Tokens = Annotated[int, Meta(ge=1, le=10_000_000)]


class Burst(Settings, frozen=True, kw_only=True):
    """A stretch of time in which requests arrive at another rate."""

    at: Moment
    seconds: Seconds
    rate: Rate


class Arrivals(Settings, frozen=True, kw_only=True):
    """The requests for one model: those of a `window` of a `trace`, or made up at a `rate` a second.

    Made-up lengths lie between half and one and a half times `prompt_tokens` and `output_tokens`. In a burst its own
    rate counts. `model` may be left out where there is one. What comes in bursts comes `burst_scale` times.
    """

    model: str = ""
    trace: str = ""
    window: str = ""
    rate_scale: Annotated[float, Meta(gt=0)] = 1.0
    length_scale: Annotated[float, Meta(gt=0)] = 1.0
    burst_scale: Annotated[int, Meta(ge=1, le=100)] = 1
    rate: Rate | None = None
    prompt_tokens: Tokens = 1000
    output_tokens: Tokens = 200
    bursts: tuple[Burst, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.trace) == (self.rate is not None):
            raise ValueError("give either a trace or a rate")
        if self.trace and self.bursts:
            raise ValueError("bursts are for a rate; a trace has its own")

    def draw(self, seconds: float, seed: int, beside: Path) -> Trace:
        """The requests of the first `seconds`; the file of a trace counts from `beside`. Raises ValueError."""
        if self.rate is None:
            part = parse_window(self.window) if self.window else Window()
            found = replay(read_trace(beside / self.trace), part, self.rate_scale, self.length_scale, seed)
        else:
            shape = RequestShape(self.prompt_tokens, self.output_tokens)
            found = arrivals_in(list(phases(self.rate, self.bursts, seconds)), shape, seed)
        inside = tuple(arrival for arrival in found if arrival.at < seconds)
        return repeat_bursts(inside, self.burst_scale, seconds)


def phases(rate: float, bursts: Sequence[Burst], seconds: float) -> Iterator[LoadPhase]:
    """Yield the stretches in which the rate is the same. Where bursts overlap the later one counts."""
    edges = {0.0, seconds, *(edge for burst in bursts for edge in (burst.at, burst.at + burst.seconds))}
    inside = sorted(edge for edge in edges if edge <= seconds)
    for start, end in pairwise(inside):
        on = [burst.rate for burst in bursts if burst.at <= start < burst.at + burst.seconds]
        yield LoadPhase("burst" if on else "usual", end - start, on[-1] if on else rate)
