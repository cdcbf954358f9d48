"""The settings of `livescale chaos`, and the load that follows from them: calm and burst in turn, so that the system
scales out and in while processes die."""

import random
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from livescale.load.engine_alone import CONTEXT
from livescale.load.records import Ask
from livescale.load.target import LoadTarget, make_asks
from livescale.load.trace import LoadPhase, RequestShape, Trace, Window, arrivals_in, replay
from livescale.load.trace_files import read_trace
from livescale.shared.runtime.settings import LiveEveryHop, LiveName, LiveWhen, Settings, TtftSlo

# Seconds, and as many times the mean rate; together they have the mean.
CALM, BURST = (12.0, 0.5), (8.0, 1.75)
TEMPERATURE = 0.8


class ChaosSettings(Settings, frozen=True, kw_only=True):
    """Which load is sent, to which system, and which faults happen meanwhile."""

    minutes: Annotated[float, Meta(description="Minutes for which requests are sent", gt=0)] = 5.0
    seed: Annotated[int, Meta(description="Seed of the random faults, arrivals, lengths and prompts", ge=0)] = 0
    disturb: Annotated[str, Meta(description="Services whose processes are killed and frozen, separated by commas")] = (
        "worker,gateway,router,registry,planner,monitor,host,nats"
    )
    stalls: Annotated[bool, Meta(description="Also freeze all processes together, for up to 5 s at a time")] = False
    workers: Annotated[int, Meta(description="Number of worker processes", ge=2, le=64)] = 3
    gateways: Annotated[
        int, Meta(description="Number of gateway processes that clients may choose from", ge=1, le=16)
    ] = 2
    routers: Annotated[
        int, Meta(description="Number of router processes; one is active, the others stand by", ge=1, le=16)
    ] = 2
    dtype: Annotated[Literal["float32", "bfloat16"], Meta(description="Number type of the model")] = "float32"
    model: Annotated[
        str | None,
        Meta(description="Checkpoint directory in Hugging Face format; by default a small one is made and kept"),
    ] = None
    transport: Annotated[
        Literal["ucx", "socket"],
        Meta(description="Transport of parameters and KV between processes: UCX, or plain TCP sockets"),
    ] = "ucx"
    live: LiveName = "zigzag"
    live_every_hop: LiveEveryHop = False
    live_when: LiveWhen = "always"
    ttft_slo: TtftSlo = 1.0
    disaggregation: Annotated[
        Literal["off", "on"],
        Meta(
            description="Whether some instances prefill and others decode. With on, workers also change roles at random"
        ),
    ] = "off"
    rate: Annotated[float, Meta(description="Without a trace: requests a second, on average", gt=0)] = 1.0
    prompt_tokens: Annotated[int, Meta(description="Without a trace: mean length of prompts, in tokens", ge=1)] = 80
    output_tokens: Annotated[int, Meta(description="Without a trace: mean length of outputs, in tokens", ge=1)] = 200
    trace: Annotated[
        str | None,
        Meta(
            description="Trace file to replay: CSV of Azure or BurstGPT, JSON lines of Mooncake, or CSV with the "
            "columns arrival_s, prompt and output. By default requests are made up"
        ),
    ] = None
    rate_scale: Annotated[
        float,
        Meta(
            description="Factor of the trace's request rate: above 1 repeats arrivals (TraceUpscaler), below 1 leaves "
            "some out",
            gt=0,
        ),
    ] = 1.0
    length_scale: Annotated[
        float, Meta(description="Factor of the lengths of the trace's prompts and outputs", gt=0)
    ] = 1.0
    report: Annotated[str, Meta(description="File to write the HTML report to")] = "livescale-chaos.html"


def make_load(settings: ChaosSettings) -> Trace:
    """The arrivals. Raises TraceError and ValueError."""
    seconds = 60 * settings.minutes
    if settings.trace is None:
        shape = RequestShape(settings.prompt_tokens, settings.output_tokens)
        return arrivals_in(make_phases(seconds, settings.rate), shape, settings.seed)
    part = Window(0.0, seconds)
    return replay(read_trace(Path(settings.trace)), part, settings.rate_scale, settings.length_scale, settings.seed)


def make_phases(seconds: float, rate: float) -> list[LoadPhase]:
    """Calm, burst, calm, burst ... until the end."""
    phases: list[LoadPhase] = []
    while seconds > 0:
        for name, (length, times) in (("calm", CALM), ("burst", BURST)):
            phases.append(LoadPhase(name, min(length, max(0.0, seconds)), rate * times))
            seconds -= length
    return phases


def make_chaos_asks(trace: Trace, target: LoadTarget, seed: int) -> list[Ask]:
    """The requests of the trace, no longer than the engine alone can take that every token is compared with."""
    fits = msgspec.structs.replace(target, context=min(target.context, CONTEXT))
    return [seeded(ask) for ask in make_asks(trace, fits, seed)]


def seeded(ask: Ask) -> Ask:
    """Every other request is sampled: both ways of choosing have to survive."""
    if ask.index % 2 == 0:
        return ask
    return msgspec.structs.replace(ask, temperature=TEMPERATURE, seed=random.Random(ask.index).getrandbits(31))
