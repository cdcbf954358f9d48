"""Settings of the load generator and of the demo, each field a flag."""

from typing import Annotated, Literal

from msgspec import Meta

from livescale.shared.runtime.settings import LiveEveryHop, LiveName, LiveWhen, Settings, TtftSlo

Positive = Annotated[float, Meta(gt=0)]


class TraceSettings(Settings, frozen=True, kw_only=True):
    """Which requests are sent when."""

    trace: Annotated[
        str | None,
        Meta(description="Replay this trace: Azure or BurstGPT CSV, Mooncake JSONL, arrival_s,prompt,output"),
    ] = None
    window: Annotated[str | None, Meta(description="Part of the trace, in seconds: START:END or START+SECONDS")] = None
    duration: Annotated[float, Meta(description="Seconds of load", gt=0)] = 45.0
    seed: Annotated[int, Meta(description="Seed of arrivals, lengths, prompts and rate scaling", ge=0)] = 0


class LoadSettings(TraceSettings, frozen=True, kw_only=True):
    """The generator alone."""

    model: Annotated[str | None, Meta(description="Model to ask; by default the server's only one")] = None
    rate_scale: Annotated[
        float,
        Meta(description="As many times the trace's requests in the same time (TraceUpscaler); below 1 thins", gt=0),
    ] = 1.0
    length_scale: Annotated[float, Meta(description="As many times the trace's prompts' and outputs' tokens", gt=0)] = (
        1.0
    )
    rate: Annotated[float, Meta(description="Without a trace: calm requests a second", gt=0)] = 1.0
    burst_rate: Annotated[float, Meta(description="Without a trace: requests a second in the burst", gt=0)] = 4.0
    prompt_tokens: Annotated[int, Meta(description="Without a trace: mean prompt, in tokens", ge=1)] = 200
    output_tokens: Annotated[int, Meta(description="Without a trace: mean output, in tokens", ge=1)] = 32
    timeout: Annotated[float, Meta(description="Seconds a request may take", gt=0)] = 300.0
    api_key: Annotated[str, Meta(description="Sent as a bearer token")] = ""
    output: Annotated[str | None, Meta(description="Write a JSON line for each request to this file")] = None
    json: Annotated[bool, Meta(description="Print the summary as JSON instead of a table")] = False


class DemoSettings(TraceSettings, frozen=True, kw_only=True):
    """The main job, on this machine."""

    rate_scale: Annotated[
        Positive | None,
        Meta(description="As many times the trace's requests; by default what overloads one worker here"),
    ] = None
    length_scale: Annotated[
        Positive | None,
        Meta(description="As many times the trace's tokens; by default as long as the made-up requests"),
    ] = None
    model: Annotated[
        str | None, Meta(description="Checkpoint in Hugging Face format; by default a small one is made once")
    ] = None
    dtype: Annotated[Literal["float32", "bfloat16"], Meta(description="Type the model runs in")] = "float32"
    workers: Annotated[int, Meta(description="Worker processes; 0 is one a CPU core and at least two", ge=0)] = 0
    transport: Annotated[Literal["ucx", "socket"], Meta(description="How parameters travel between processes")] = "ucx"
    link_rate: Annotated[
        float, Meta(description="Bytes a second that leave a worker, so that blocks can be seen arriving", ge=0)
    ] = 30e6
    live: LiveName = "zigzag"
    live_every_hop: LiveEveryHop = False
    live_when: LiveWhen = "always"
    ttft_slo: TtftSlo = 1.0
    report: Annotated[str, Meta(description="Where the HTML report is written")] = "livescale-demo.html"


def refuse_replay_without_trace(settings: LoadSettings | DemoSettings) -> None:
    """Raises ValueError where an option says how to replay a trace that is not given."""
    for name in ("window", "rate_scale", "length_scale"):
        if settings.trace is None and getattr(settings, name) not in (None, 1.0):
            raise ValueError(f"--{name.replace('_', '-')} says how to replay a trace: give the trace with --trace")
