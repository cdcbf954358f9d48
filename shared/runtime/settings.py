"""Settings: frozen structs, read once in a process's main and passed down.

Each field is a flag (`--max-num-seqs`), a variable (`LIVESCALE_MAX_NUM_SEQS`) and a key of the configuration file
(`max-num-seqs`), in this order. A misspelt key is refused by name. Each service's struct inherits `ProcessSettings`.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

TopologyName = Annotated[
    str,
    Meta(
        description="The cluster: a YAML file of its hosts, GPUs and links, or the name of a shipped one such as "
        "cluster-a. `livescale topology --help` shows the format. By default links are unknown"
    ),
]
PolicyName = Annotated[
    Literal["auto", "chains", "binomial", "tree", "fanout", "ring", "local"],
    Meta(
        description="How parameters reach new instances. chains: each new instance passes them on to the next "
        "(BlitzScale); binomial: a binomial pipeline (LambdaScale); tree: a binary tree; fanout: the sources send to "
        "all; ring: one source sends through all in turn, once they have formed a group (NCCL); local: each host reads "
        "its own copy; auto: chains, or binomial with --live pipeline"
    ),
]
GroupSetup = Annotated[
    float,
    Meta(
        description="Seconds that it takes to form a group for each scale with --plan-policy ring; NCCL takes 0.1",
        ge=0,
        le=2,
    ),
]

EngineName = Annotated[
    Literal["torch", "modelled"],
    Meta(
        description="What runs models. torch: the real engine; modelled: an emulation that takes as long as a GPU "
        "would "
        "and makes up its tokens"
    ),
]
EngineProfile = Annotated[
    str,
    Meta(
        description="How long the steps of a modelled engine take: a file that `livescale profile` wrote, or the name "
        "of a shipped profile; a wrong name is answered with all of them",
        min_length=1,
    ),
]
EngineSpeed = Annotated[float, Meta(description="How many times as fast as its profile a modelled engine is", gt=0)]

LiveName = Annotated[
    Literal["off", "best-effort", "zigzag", "zigzag-ilp", "pipeline"],
    Meta(
        description="Whether new instances take requests while their parameters still arrive. off: no; best-effort: "
        "they run the layers that they have of each request once, then give it away; zigzag: they share layers with a "
        "serving instance, in zigzag order (BlitzScale 5.2); zigzag-ilp: in the best order, which an integer program "
        "finds; pipeline: several that have all layers between them serve together (LambdaScale 4.3)"
    ),
]


def check_plan_policy(policy: PolicyName, live: LiveName) -> None:
    """Raise ValueError for a plan policy by which no worker could ever be live in this mode."""
    if live == "pipeline" and policy not in ("auto", "binomial"):
        raise ValueError(
            f"plan-policy is {policy}: with it all new instances get the blocks in the same order, so they cannot form "
            "a pipeline; with --live pipeline choose --plan-policy binomial, or leave it out"
        )


HostCacheName = Annotated[
    Literal["pool", "ttl", "all"],
    Meta(
        description="Which copies of models hosts keep in memory. pool: one of each (BlitzScale 5.3); ttl: each host "
        "those that it used of late (ServerlessLLM), see --host-cache-ttl; all: every host one of each"
    ),
]
HostCacheTtl = Annotated[
    float,
    Meta(
        description="With --host-cache ttl: seconds after its last use that a host keeps a copy. It is in use while "
        "it is read or sent, and while a worker of the same machine holds the model",
        gt=0,
    ),
]

RoutingName = Annotated[
    Literal["least-loaded", "round-robin"],
    Meta(
        description="Which instance gets a request. least-loaded: the one whose waiting prompts take least time, and "
        "of equal ones that with the most room; while none has room, requests wait at the router; round-robin: "
        "instances take turns, and requests wait at each of them, as behind a balancer that knows no load"
    ),
]
ScalingMode = Annotated[
    Literal["automatic", "advisory"],
    Meta(
        description="Whether the monitor has its decisions carried out, or is advisory: it decides and explains, and "
        "operators scale. A model still gets its fewest instances"
    ),
]

KeepParameters = Annotated[
    bool,
    Meta(
        description="Have workers keep the parameters of an instance that was given back until others need the memory. "
        "When its model wants a worker again, such a one serves at once. What is mapped from a host is not kept, nor "
        "are ranks of several"
    ),
]

LiveEveryHop = Annotated[
    bool,
    Meta(
        description="With --live: instances in the middle of a chain, which send parameters on, take requests early "
        "too, not only the last of each chain"
    ),
]
LiveWhen = Annotated[
    Literal["always", "needed"],
    Meta(
        description="With --live: which scales are live. always: all; needed: only those in which requests would "
        "wait longer than --ttft-slo if new instances took none before they have all parameters"
    ),
]
SwitchKv = Annotated[
    Literal["auto", "move", "recompute"],
    Meta(
        description="How a worker gets the KV cache of a request that it goes on with when a pipeline ends (--live "
        "pipeline). move: from the pipeline's other workers; recompute: it computes it again; auto: the faster of the "
        "two, as measured"
    ),
]
TtftSlo = Annotated[
    float,
    Meta(
        description="Seconds that the first token of a request may take; used by --live-when needed, and with 0.08 ms "
        "more for each token of the prompt by --disaggregation auto",
        gt=0,
    ),
]
TbtSlo = Annotated[
    float,
    Meta(
        description="Seconds from one token of a request to the next, on average, that are in time; used by "
        "--disaggregation auto: steps with prompts beside decodes take as long at most, in place of --tbt-ratio",
        gt=0,
    ),
]


HOST_AND_PORT = r"^([^:\[\]\s]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}$"
SystemBind = Annotated[
    str,
    Meta(
        description="HOST:PORT of the system port: /live, /ready and /metrics of this process, without keys; port 0 "
        "takes a free one, which `livescale status --verbose` shows",
        pattern=HOST_AND_PORT,
    ),
]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all settings. Fields carry `Annotated[type, Meta(description=..., ge=...)]`: the help and the bounds.

    A worker's field with `extra={"up": title}` in its Meta is an option of `livescale up` too, which passes it on to
    all workers; its help shows it in the group of that title.
    """


class BusSettings(Settings, frozen=True, kw_only=True):
    """Where the bus is, and how this process authenticates to it. The url may have user and password, or a token."""

    nats_url: Annotated[str, Meta(description="URL of the NATS server that is the bus")] = "nats://127.0.0.1:4222"
    nats_login: Annotated[
        str, Meta(description="File with USER:PASSWORD for the NATS server, as `livescale credentials` writes it")
    ] = ""
    nats_creds: Annotated[str, Meta(description="File of NATS credentials, a JWT and its nkey, as `nsc` writes it")] = (
        ""
    )
    nats_nkey: Annotated[str, Meta(description="File with the nkey seed by which to log in to NATS")] = ""
    nats_ca: Annotated[
        str, Meta(description="PEM file of the authorities that the NATS server's certificate is checked against")
    ] = ""
    nats_cert: Annotated[
        str, Meta(description="PEM file of the certificate that this process shows to the NATS server")
    ] = ""
    nats_key: Annotated[str, Meta(description="PEM file of the private key of --nats-cert")] = ""
    namespace: Annotated[
        str,
        Meta(
            description="Name of this system; it keeps several systems on one NATS server apart",
            pattern="^[a-z0-9-]+$",
        ),
    ] = "default"


class ProcessSettings(BusSettings, frozen=True, kw_only=True):
    """Settings that every process has: its names, and how it logs."""

    id: Annotated[
        str,
        Meta(
            description="Id of this process, of a-z, 0-9 and -; by default SERVICE-0. auto: SERVICE-MACHINE-N, with "
            "the first N that is free on this machine",
            pattern="^[a-z0-9-]*$",
        ),
    ] = ""
    host_name: Annotated[
        str, Meta(description="Name of this machine in `livescale status`; by default the system's host name")
    ] = ""
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Least severe level of log events that are printed"),
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"], Meta(description="Format of log events on stderr: text, or a JSON object a line")
    ] = "text"
    system_bind: SystemBind = "127.0.0.1:0"
    system_file: Annotated[
        str, Meta(description="File to write the HOST:PORT of the system port to, for a probe on this machine")
    ] = ""


class LinkSettings(ProcessSettings, frozen=True, kw_only=True):
    """Settings of processes with a bulk link: workers and hosts. Inherit from this alone: structs have one base."""

    transport: Annotated[
        Literal["ucx", "socket"],
        Meta(
            description="Transport of parameters and KV between processes: UCX, or plain TCP sockets. Where UCX is "
            "not installed, ucx is an error"
        ),
    ] = "ucx"
    share_memory: Annotated[
        Literal["auto", "off"],
        Meta(
            description="Whether a process maps a model that another process of this machine has in memory, instead "
            "of receiving a copy. auto: yes, unless links are shaped; off: never"
        ),
    ] = "auto"
    bind: Annotated[
        str,
        Meta(
            description="IP address of this machine on which other processes reach this one's link; auto: the address "
            "from which this machine reaches the bus"
        ),
    ] = "127.0.0.1"
    link_rate: Annotated[
        float, Meta(description="Most bytes a second that this process sends over its link; 0 is no limit", ge=0)
    ] = 0.0
    topology: TopologyName = ""
    place: Annotated[
        str, Meta(description="Place of this process in the topology: a GPU, as HOST/INDEX, or a host")
    ] = ""
    shaping_file: Annotated[
        str,
        Meta(
            description="File that limits links to the rates of the topology: in it all processes of this machine "
            "keep what their links carry. Name a new file at every start"
        ),
    ] = ""
