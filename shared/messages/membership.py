"""Membership: joining, heartbeats and leases."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from livescale.shared.messages.message import Amount, Count, Message, Name, Positive, TraceParent

ServiceName = Literal["gateway", "router", "registry", "planner", "monitor", "host", "worker"]
Role = Literal["colocated", "prefill", "decode"]
WorkerState = Literal["spare", "loading", "live", "serving", "draining"]
LeaseState = Literal["alive", "suspect", "dead"]
Address = Annotated[bytes, Meta(max_length=65_536)]


class Join(Message, frozen=True, kw_only=True):
    """A process -> registry, at its start and whenever its epoch was refused.

    `host` is the machine's name; `address` its link address and `place` the GPU or host of the topology that it is
    (workers and hosts only). `kernels`: the name of the bits that a worker computes; None where it computes nothing.
    `system`: HOST:PORT of its system port.
    """

    service: ServiceName
    id: Name
    pid: Count
    host: Name
    address: Address | None = None
    place: Name | None = None
    kernels: Name | None = None
    system: Name | None = None


class Joined(Message, frozen=True, kw_only=True):
    """Registry -> process: you are a member. Carry this epoch in everything you say."""

    epoch: Count


class Leave(Message, frozen=True, kw_only=True):
    """A process -> registry, as its last message: it ends now, so its lease need not run out first."""

    service: ServiceName
    id: Name
    epoch: Count


class Beat(Message, frozen=True, kw_only=True):
    """Heartbeat of a process that has nothing else to report."""

    service: ServiceName
    id: Name
    epoch: Count


class StepSpeed(Message, frozen=True, kw_only=True):
    """How long an engine's steps take, as learned from those that ran.

    A step of decodes takes `step_seconds`, and `row_seconds` for each request in it. Prompts alone run at
    `prompt_tokens_per_second`. Beside decodes a step has `beside_tokens` of them, and takes `beside_seconds` more.
    """

    step_seconds: Amount
    row_seconds: Amount
    prompt_tokens_per_second: Amount
    beside_tokens: Amount
    beside_seconds: Amount


class EngineLoad(Message, frozen=True, kw_only=True):
    """What an engine has to do and has room for. Rates are None until they have been measured: unknown, not zero.

    `waiting_tokens`: prompt tokens admitted and not yet prefilled. `kv_blocks_used` are those that hold tokens, or are
    about to. `kv_full`: a request waits here for KV blocks; it is no use to give more to this engine now.
    `reserved_requests` are prefilled elsewhere and will be decoded here; `reserved_blocks`, of those used, are theirs.
    `kv_tokens_per_second`: at which rate the KV of prompts leaves here while it is sent. `keeps_prefixes`: the KV of
    prompts is kept here for those that begin alike.
    """

    waiting_requests: Count
    waiting_tokens: Count
    running_requests: Count
    max_requests: Count
    kv_blocks_used: Count
    kv_blocks_total: Count
    kv_block_tokens: Positive
    kv_full: bool = False
    reserved_requests: Count = 0
    reserved_blocks: Count = 0
    prefill_tokens_per_second: Amount | None = None
    decode_tokens_per_second: Amount | None = None
    steps: StepSpeed | None = None
    kv_tokens_per_second: Amount | None = None
    keeps_prefixes: bool = False


class Holding(Message, frozen=True, kw_only=True):
    """Blocks of one model version that are whole and verified in this process's memory.

    A version is known once every block is, so it is empty while a host reads the model from disk. A host says how many
    bytes are set aside for it, and whether any of it is being sent: it cannot be released then.
    """

    model: Name
    version: str
    ready: list[Count]
    total: Count
    size_bytes: Count = 0
    sending: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether all blocks are here. It is not while nobody knows how many there are."""
        return 0 < self.total == len(self.ready)


class PeerTraffic(Message, frozen=True, kw_only=True):
    """What serving moved to and from the process with this link address, bytes a second of late: no parameters."""

    peer: Address
    sent: Amount = 0.0
    received: Amount = 0.0


class WorkerReport(Message, frozen=True, kw_only=True):
    """A worker's heartbeat, sent twice a second and at every change. `instance` and `model` are None on a spare.

    `plan_id`: the plan that it loads or loaded for. `traffic`: with each process that serving moves bytes to or from;
    None is unknown, not zero. `device`: where its parameters lie. `host`: its machine. `paths`: which way parameters
    came from each node lately. `engine`: what runs its model; tokens of a `modelled` engine are not real. `kv_blocks`:
    for the model that it loads or holds.

    In live scaling, `helping`: the workers that it takes requests over from. `live_layers`: through how many layers it
    can run requests while it loads; `live_waiting`: how many of them wait; `handed_over`: how many it gave to which
    worker. `pipeline`, `stage`: the execution pipeline that it is part of, and its blocks there. `kv_way`: how it gets
    the KV of requests that it goes on with. `sending_kv`: how many requests it prefills for others to decode. `parked`:
    the version of which a spare worker has all parameters still, and can serve without receiving any.
    """

    service: ClassVar[ServiceName] = "worker"
    id: Name
    epoch: Count
    state: WorkerState
    model: Name | None = None
    version: Name | None = None
    instance: Name | None = None
    plan_id: Name | None = None
    role: Role | None = None
    rank: Count = 0
    holding: Holding | None = None
    arena_bytes: Count = 0
    device: Name = "cpu"
    host: Name | None = None
    engine: Name = "torch"
    paths: dict[Name, Name] = {}
    load: EngineLoad | None = None
    flows_out: Count = 0
    helping: list[Name] = []
    live_layers: Count = 0
    live_waiting: Count = 0
    kv_blocks: Count = 0
    pipeline: Name | None = None
    stage: str = ""
    kv_way: str = ""
    sending_kv: Count = 0
    parked: Name | None = None
    handed_over: dict[Name, Count] = {}
    traffic: list[PeerTraffic] | None = None


class HostReport(Message, frozen=True, kw_only=True):
    """A host's heartbeat: its cache, its transfers under way."""

    service: ClassVar[ServiceName] = "host"
    id: Name
    epoch: Count
    holdings: list[Holding] = []
    cache_bytes: Count = 0
    cache_limit_bytes: Count = 0
    flows_out: Count = 0


class QueueLoad(Message, frozen=True, kw_only=True):
    """A model's queue at the router. `running`: requests admitted to workers and not yet ended.

    `arriving_tokens_per_second`: prompt tokens that came of late; None where it is not measured. `traceparent`: of the
    request that has waited longest, where requests are traced. `prefilling`: how many of its instances are to prefill
    while the others decode, 0 where all do both, and `why_prefilling`; None where the router does not choose.
    """

    model: Name
    waiting_requests: Count
    waiting_tokens: Count
    oldest_seconds: Amount
    running: Count
    arriving_tokens_per_second: Amount | None = None
    traceparent: TraceParent | None = None
    prefilling: Count | None = None
    why_prefilling: str = ""


class RouterReport(Message, frozen=True, kw_only=True):
    """The router's heartbeat: a queue per model."""

    service: ClassVar[ServiceName] = "router"
    id: Name
    epoch: Count
    queues: list[QueueLoad] = []


Report = Beat | WorkerReport | HostReport | RouterReport


class LeaseChanged(Message, frozen=True, kw_only=True):
    """Event of the registry, which alone judges whether a process is alive."""

    service: ServiceName
    id: Name
    epoch: Count
    state: LeaseState
    reason: str
    at: Amount


class Stale(Message, frozen=True, kw_only=True):
    """Registry -> a process that speaks with an old epoch: join again (a worker rejoins as spare).

    `epoch` is the one that is refused.
    """

    id: Name
    epoch: Count


class Member(Message, frozen=True, kw_only=True):
    """A process as the registry knows it; `lease` says whether it is taken to be alive.

    `system`: HOST:PORT of its system port.
    """

    service: ServiceName
    id: Name
    pid: Count
    host: Name
    epoch: Count
    lease: LeaseState
    address: Address | None = None
    place: Name | None = None
    kernels: Name | None = None
    system: Name | None = None


class AskMetrics(Message, frozen=True):
    """Ask a process for its metrics, in Prometheus' text format."""


class MetricsText(Message, frozen=True, kw_only=True):
    """Prometheus text exposition of one process."""

    text: str
