"""Settings: frozen structs, read once in a process's main and passed down.

Every field is a flag (`--max-num-seqs`), an environment variable (`LIVESCALE_MAX_NUM_SEQS`) and a key of the
configuration file (`max-num-seqs`); flag > environment > file > default. A misspelt key is refused by name.
Each service's own struct lies in `services/<service>/settings.py` and inherits `ProcessSettings`.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

TopologyName = Annotated[str, Meta(description="The cluster: a topology file, or the name of one that is shipped")]
PolicyName = Annotated[
    Literal["auto", "chains", "binomial", "tree", "fanout", "local"],
    Meta(
        description="How parameters get to new instances: chains (BlitzScale), a binomial pipeline (LambdaScale), a "
        "binary tree, everything from the sources themselves, or each host from its own copy; auto: chains, and a "
        "binomial pipeline with --live pipeline"
    ),
]

EngineName = Annotated[
    Literal["torch", "modelled"],
    Meta(description="What runs models: torch; or modelled, a GPU's latency without its arithmetic: made-up tokens"),
]
EngineProfile = Annotated[
    str,
    Meta(
        description="The latency of a modelled engine: a file that `livescale profile` wrote, or a name of "
        "shared/latencies.yaml",
        min_length=1,
    ),
]
EngineSpeed = Annotated[float, Meta(description="A modelled engine is so many times as fast as its profile", gt=0)]


LiveName = Annotated[
    Literal["off", "best-effort", "zigzag", "zigzag-ilp", "pipeline"],
    Meta(
        description="Whether new instances take requests while their parameters still arrive (BlitzScale 5.2): not at "
        "all, running what layers they have of each once, in zigzag with instances that serve, in the order that an "
        "integer program finds to be the best, or as pipelines of several that hold the model between them "
        "(LambdaScale 4.3)"
    ),
]


def check_plan_policy(policy: PolicyName, live: LiveName) -> None:
    """Raise ValueError for a plan policy by which no worker could ever be live in this mode."""
    if live == "pipeline" and policy not in ("auto", "binomial"):
        raise ValueError(
            f"plan-policy {policy} brings all new instances the model in the same order, so none make a pipeline: "
            "with --live pipeline leave --plan-policy out, or choose binomial"
        )


LiveEveryHop = Annotated[
    bool, Meta(description="With --live: also those that send parameters on, and not only the last of each chain")
]
LiveWhen = Annotated[
    Literal["always", "needed"],
    Meta(
        description="With --live: for all new instances; or only where requests would wait longer than --ttft-slo if "
        "new instances stopped until they are whole, as far as the load and the links are known"
    ),
]
SwitchKv = Annotated[
    Literal["auto", "move", "recompute"],
    Meta(
        description="When a pipeline is over (--live pipeline): whether the worker that goes on with a request gets "
        "its KV from the other workers or computes it again; auto: what is faster, as links and prefill were measured"
    ),
]
TtftSlo = Annotated[
    float, Meta(description="Seconds that a first token may take: what --live-when needed goes by", gt=0)
]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all settings. Fields carry `Annotated[type, Meta(description=..., ge=...)]`: the help and the bounds.

    A worker's field with `extra={"up": title}` in its Meta is an option of `livescale up` too, which passes it on to
    all workers; its help shows it in the group of that title.
    """


class BusSettings(Settings, frozen=True, kw_only=True):
    """Where the bus is, and how this process proves who it is. User and password, or a token, are part of the url."""

    nats_url: Annotated[str, Meta(description="The bus. Also read from NATS_URL")] = "nats://127.0.0.1:4222"
    nats_creds: Annotated[str, Meta(description="File of NATS credentials (JWT and nkey)")] = ""
    nats_nkey: Annotated[str, Meta(description="File of an nkey seed")] = ""
    nats_ca: Annotated[str, Meta(description="File of the certificates that the NATS server is checked with")] = ""
    nats_cert: Annotated[str, Meta(description="File of our certificate for the NATS server")] = ""
    nats_key: Annotated[str, Meta(description="File of that certificate's key")] = ""
    namespace: Annotated[str, Meta(description="Keeps systems on one NATS server apart", pattern="^[a-z0-9-]+$")] = (
        "default"
    )


class ProcessSettings(BusSettings, frozen=True, kw_only=True):
    """Settings that every process has: its names, and how it logs."""

    id: Annotated[
        str, Meta(description="This process's id, [a-z0-9-]+; by default service-0", pattern="^[a-z0-9-]*$")
    ] = ""
    host_name: Annotated[str, Meta(description="This machine's name in status; by default the system's")] = ""
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least severe log event that is printed")
    ] = "info"
    log_format: Annotated[Literal["text", "json"], Meta(description="How log events are printed")] = "text"


class LinkSettings(ProcessSettings, frozen=True, kw_only=True):
    """Settings of processes with a bulk link: workers and hosts. Inherit from this alone: structs have one base."""

    transport: Annotated[
        Literal["ucx", "socket"], Meta(description="Bulk transport; a missing UCX is an error, never a fallback")
    ] = "ucx"
    share_memory: Annotated[
        Literal["auto", "off"],
        Meta(
            description="auto: a model that another process of this machine has is mapped from its memory instead of "
            "sent, unless links are shaped"
        ),
    ] = "auto"
    bind: Annotated[str, Meta(description="Address on which other machines reach this one's bulk link")] = "127.0.0.1"
    link_rate: Annotated[
        float, Meta(description="Shape what leaves this process to so many bytes a second; 0 is unshaped", ge=0)
    ] = 0.0
    topology: TopologyName = ""
    place: Annotated[str, Meta(description="Where in the topology this process is: a GPU (HOST/INDEX) or a host")] = ""
    shaping_file: Annotated[
        str,
        Meta(
            description="Shape links to the topology; the file by which all processes of this machine agree on what "
            "their links carry. It must not outlive them"
        ),
    ] = ""
