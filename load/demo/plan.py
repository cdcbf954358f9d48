"""Chooses a load whose burst is too much for one worker and not for two, on any machine. Pure."""

import msgspec
from msgspec.structs import replace

from livescale.load.settings import DemoSettings
from livescale.load.trace import (
    Arrival,
    RequestShape,
    Trace,
    TraceError,
    Window,
    arrivals_in,
    busiest,
    calm_burst_calm,
    fit,
    parse_window,
    replay,
)

# Share of one worker's capacity that is asked for when calm and in the burst. Two workers and the control
# processes share the machine's cores, so two workers are somewhat less than twice one.
CALM_LOAD = 0.3
BURST_LOAD = 1.4
# Mostly prompt, as in chat and code: waiting prompt tokens are what the monitor scales by. Outputs are long enough
# to show how new instances change the time between tokens.
SHAPE = RequestShape(prompt_tokens=192, output_tokens=24)


class MeasuredRates(msgspec.Struct, frozen=True):
    """What one worker was measured to do, in tokens a second."""

    prefill_rate: float
    decode_rate: float

    def seconds(self, arrival: Arrival) -> float:
        """Time that one worker is busy with a request."""
        return arrival.prompt_tokens / self.prefill_rate + arrival.output_tokens / self.decode_rate


class DemoLoad(msgspec.Struct, frozen=True):
    """What is sent, and when its burst is (seconds from the start). Scales are None without a trace."""

    trace: Trace
    seconds: float
    burst: Window
    rate_scale: float | None = None
    length_scale: float | None = None


def plan_load(settings: DemoSettings, capacity: MeasuredRates, source: Trace | None, context: int) -> DemoLoad:
    """The load for these settings on this machine. Raises TraceError where the trace has no request in the window."""
    if source is None:
        return plan_made_up(settings, capacity, context)
    return plan_replay(settings, capacity, source, context)


def plan_made_up(settings: DemoSettings, capacity: MeasuredRates, context: int) -> DemoLoad:
    request_seconds = capacity.seconds(Arrival(0.0, SHAPE.prompt_tokens, SHAPE.output_tokens))
    phases = calm_burst_calm(settings.duration, CALM_LOAD / request_seconds, BURST_LOAD / request_seconds)
    before, burst, after = phases
    # By chance two requests would soon meet even when it is calm, and where they take long that already scales.
    phases = (replace(before, steady=True), burst, replace(after, steady=True))
    return DemoLoad(
        trace=fit(arrivals_in(phases, SHAPE, settings.seed), context),
        seconds=settings.duration,
        burst=Window(before.seconds, before.seconds + burst.seconds),
    )


def plan_replay(settings: DemoSettings, capacity: MeasuredRates, source: Trace, context: int) -> DemoLoad:
    """A trace, by default scaled so that its busiest quarter is the burst."""
    part = parse_window(settings.window) if settings.window else Window(0.0, settings.duration)
    seconds = part.seconds or max(0.0, source[-1].at - part.start)
    length_scale = settings.length_scale or length_scale_of(replay(source, part, 1.0, 1.0, settings.seed))
    # The rate can only be chosen once it is known how long the requests are.
    as_is = fit(replay(source, part, 1.0, length_scale, settings.seed), context)
    rate_scale = settings.rate_scale or BURST_LOAD / load_of(as_is, capacity, seconds)
    trace = fit(replay(source, part, rate_scale, length_scale, settings.seed), context)
    if not trace:
        raise TraceError(f"no request of the trace is left at {rate_scale:.3g} times its rate; raise --rate-scale")
    return DemoLoad(trace, seconds, busiest(trace, seconds), rate_scale, length_scale)


def length_scale_of(trace: Trace) -> float:
    """Makes the mean request as long as the made-up ones, never longer than it was."""
    if not trace:
        raise TraceError("the trace has no request in this window; choose another --window")
    mean = sum(arrival.prompt_tokens + arrival.output_tokens for arrival in trace) / len(trace)
    return min(1.0, (SHAPE.prompt_tokens + SHAPE.output_tokens) / mean)


def load_of(trace: Trace, capacity: MeasuredRates, seconds: float) -> float:
    """Share of one worker's capacity that the busiest quarter asks for."""
    if not trace:
        raise TraceError("the trace has no request in this window; choose another --window")
    burst = busiest(trace, seconds)
    work = sum(capacity.seconds(arrival) for arrival in trace if burst.start <= arrival.at < (burst.end or seconds))
    return work / (burst.seconds or seconds)
