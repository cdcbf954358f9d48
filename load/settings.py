"""Settings of the load generator and of the demo, each field a flag."""

from typing import Annotated, Literal

from msgspec import Meta

from livescale.shared.runtime.settings import LiveEveryHop, LiveName, LiveWhen, Settings, TtftSlo

Positive = Annotated[float, Meta(gt=0)]


class TraceSettings(Settings, frozen=True, kw_only=True):
    """Which requests are sent when: replayed from a trace, or made up."""

    trace: Annotated[
        str | None,
        Meta(
            description="Trace file to replay: CSV of Azure or BurstGPT, JSON lines of Mooncake, or CSV with the "
            "columns "
            "arrival_s, prompt and output. By default requests are made up"
        ),
    ] = None
    window: Annotated[
        str | None,
        Meta(
            description="Part of the trace to replay, in seconds: START:END or START+SECONDS; by default the first "
            "--duration seconds"
        ),
    ] = None
    duration: Annotated[
        float, Meta(description="Seconds for which requests are sent; with a trace, --window goes before it", gt=0)
    ] = 45.0
    seed: Annotated[int, Meta(description="Seed of the random arrivals, lengths, prompts and rate scaling", ge=0)] = 0


class LoadSettings(TraceSettings, frozen=True, kw_only=True):
    """The settings of `livescale load`, the load generator by itself."""

    model: Annotated[str | None, Meta(description="Name of the model to ask; by default the server's only one")] = None
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
    rate: Annotated[float, Meta(description="Without a trace: requests a second outside the burst", gt=0)] = 1.0
    burst_rate: Annotated[float, Meta(description="Without a trace: requests a second in the burst", gt=0)] = 4.0
    prompt_tokens: Annotated[int, Meta(description="Without a trace: mean length of prompts, in tokens", ge=1)] = 200
    output_tokens: Annotated[int, Meta(description="Without a trace: mean length of outputs, in tokens", ge=1)] = 32
    timeout: Annotated[float, Meta(description="Seconds that a request may take before it counts as failed", gt=0)] = (
        300.0
    )
    api_key: Annotated[str, Meta(description="API key to send, as a bearer token")] = ""
    output: Annotated[str | None, Meta(description="File to write a JSON line to for each request")] = None
    json: Annotated[bool, Meta(description="Print the summary as JSON instead of a table")] = False


class DemoSettings(TraceSettings, frozen=True, kw_only=True):
    """The settings of `livescale demo`, each a flag."""

    rate_scale: Annotated[
        Positive | None,
        Meta(description="Factor of the trace's request rate; by default one that overloads a single worker here"),
    ] = None
    length_scale: Annotated[
        Positive | None,
        Meta(
            description="Factor of the lengths of the trace's prompts and outputs; by default one that makes them as "
            "long as made-up ones"
        ),
    ] = None
    model: Annotated[
        str | None,
        Meta(description="Checkpoint directory in Hugging Face format; by default a small one is made and kept"),
    ] = None
    dtype: Annotated[Literal["float32", "bfloat16"], Meta(description="Number type of the model")] = "float32"
    workers: Annotated[
        int, Meta(description="Number of worker processes; 0 is one for each CPU core, at least two", ge=0)
    ] = 0
    transport: Annotated[
        Literal["ucx", "socket"],
        Meta(description="Transport of parameters and KV between processes: UCX, or plain TCP sockets"),
    ] = "ucx"
    link_rate: Annotated[
        float, Meta(description="Most bytes a second that a worker sends; slow, so that blocks are seen arriving", ge=0)
    ] = 30e6
    live: LiveName = "zigzag"
    live_every_hop: LiveEveryHop = False
    live_when: LiveWhen = "always"
    ttft_slo: TtftSlo = 1.0
    report: Annotated[str, Meta(description="File to write the HTML report to")] = "livescale-demo.html"


def refuse_replay_without_trace(settings: LoadSettings | DemoSettings) -> None:
    """Raises ValueError if an option says how to replay a trace, and none is given."""
    for name in ("window", "rate_scale", "length_scale"):
        if settings.trace is None and getattr(settings, name) not in (None, 1.0):
            raise ValueError(f"--{name.replace('_', '-')} says how to replay a trace: give the trace with --trace")
