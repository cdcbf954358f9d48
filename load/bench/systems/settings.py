"""The settings of `livescale bench systems`, each a flag."""

from typing import Annotated

from msgspec import Meta

from livescale.shared.runtime.settings import EngineProfile, Settings

LADDER = ("serverlessllm", "+network", "+multicast", "+zigzag")
SYSTEMS = (*LADDER, "allcache", "distserve-full", "distserve-half", "ideal")


class SystemsBenchSettings(Settings, frozen=True, kw_only=True):
    """Which systems are compared, on which arrivals, and what they are given."""

    trace: Annotated[
        str | None,
        Meta(
            description="Trace file to replay: CSV of Azure or BurstGPT, JSON lines of Mooncake, or CSV with the "
            "columns arrival_s, prompt and output"
        ),
    ] = None
    window: Annotated[
        str,
        Meta(
            description="Part of the trace to replay, in seconds: START:END or START+SECONDS. It is simulated second "
            "by second for every system and seed, so a minute or two is plenty"
        ),
    ] = "0+60"
    systems: Annotated[
        str,
        Meta(description="Systems to compare, with commas between them; `livescale systems` lists them", min_length=1),
    ] = ",".join(SYSTEMS)
    seeds: Annotated[
        int,
        Meta(
            description="Number of runs of each system; seeds vary prompts, what messages take, and which arrivals a "
            "rate scale repeats. Figures are medians of them",
            ge=1,
            le=100,
        ),
    ] = 3
    workers: Annotated[int, Meta(description="Number of workers, as many on each host", ge=2, le=32)] = 8
    topology: Annotated[
        str,
        Meta(
            description="The cluster whose links, hosts and disks are modelled: a file, or the name of a shipped one",
            min_length=1,
        ),
    ] = "cluster-b"
    engine_profile: EngineProfile = "llama3-8b-a100"
    parameters_gb: Annotated[
        float,
        Meta(description="Gigabytes of the model's parameters, which decide how long a load takes", gt=0, le=1000),
    ] = 16.06
    kv_tokens: Annotated[int, Meta(description="Tokens for which the KV cache of a worker has room", ge=8192)] = 400_000
    rate_scale: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(
            description="Factor of the trace's request rate; by default one by which prompts take half of what "
            "distserve-full can prefill. As in BlitzScale's experiments, half of the instances are enough on average"
        ),
    ] = None
    warm_up: Annotated[
        float,
        Meta(description="Seconds at the start of the window that are replayed and not counted", ge=0),
    ] = 10.0
    jobs: Annotated[
        int, Meta(description="Number of runs at the same time; 0 is one for each CPU core", ge=0, le=64)
    ] = 0
    runs: Annotated[
        str, Meta(description="Directory that keeps every run; those of the same scenario and code are not run again")
    ] = ".livescale/runs"
    output: Annotated[str, Meta(description="File to write the results to, as JSON")] = "livescale-systems.json"
    report: Annotated[str, Meta(description="File to write the HTML report to")] = "livescale-systems.html"
