"""What `livescale chaos` can be told."""

from typing import Annotated, Literal

from msgspec import Meta

from livescale.shared.runtime.settings import LiveEveryHop, LiveName, LiveWhen, Settings, TtftSlo


class ChaosSettings(Settings, frozen=True, kw_only=True):
    """A load, and what goes wrong meanwhile."""

    minutes: Annotated[float, Meta(description="Minutes of load", gt=0)] = 5.0
    seed: Annotated[int, Meta(description="Seed of faults, arrivals, lengths and prompts", ge=0)] = 0
    disturb: Annotated[str, Meta(description="Services whose processes are killed and frozen, with commas between")] = (
        "worker,gateway,router,registry,planner,monitor,host,nats"
    )
    stalls: Annotated[bool, Meta(description="Freeze all processes together, too, for up to 5 s at a time")] = False
    workers: Annotated[int, Meta(description="Worker processes", ge=2, le=64)] = 3
    gateways: Annotated[int, Meta(description="Gateways that clients may choose from", ge=1, le=16)] = 2
    routers: Annotated[int, Meta(description="Routers; one is in office, the others stand by", ge=1, le=16)] = 2
    dtype: Annotated[Literal["float32", "bfloat16"], Meta(description="Type the model runs in")] = "float32"
    model: Annotated[
        str | None, Meta(description="Checkpoint in Hugging Face format; by default a small one is made once")
    ] = None
    transport: Annotated[Literal["ucx", "socket"], Meta(description="How parameters travel between processes")] = "ucx"
    live: LiveName = "zigzag"
    live_every_hop: LiveEveryHop = False
    live_when: LiveWhen = "always"
    ttft_slo: TtftSlo = 1.0
    rate: Annotated[float, Meta(description="Without a trace: requests a second, on average", gt=0)] = 1.0
    prompt_tokens: Annotated[int, Meta(description="Without a trace: mean prompt, in tokens", ge=1)] = 80
    output_tokens: Annotated[int, Meta(description="Without a trace: mean output, in tokens", ge=1)] = 200
    trace: Annotated[
        str | None,
        Meta(description="Replay this trace: Azure or BurstGPT CSV, Mooncake JSONL, arrival_s,prompt,output"),
    ] = None
    rate_scale: Annotated[float, Meta(description="As many times the trace's requests in the same time", gt=0)] = 1.0
    length_scale: Annotated[float, Meta(description="As many times the trace's tokens", gt=0)] = 1.0
    report: Annotated[str, Meta(description="Where the HTML report is written")] = "livescale-chaos.html"
