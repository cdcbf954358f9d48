"""Who is there: joining, heartbeats, leases, and the registry's picture of the pool."""

from typing import Literal

from shared.messages.message import Message
from shared.messages.parameters import ModelSpec

ServiceName = Literal["gateway", "router", "registry", "planner", "monitor", "host", "worker"]
Role = Literal["colocated", "prefill", "decode"]
WorkerState = Literal["spare", "loading", "live", "serving", "draining"]
LeaseState = Literal["alive", "suspect", "dead"]


class Join(Message, frozen=True, kw_only=True):
    """A process -> registry, at its start and whenever its epoch was refused.

    `host` is the machine's name, `address` its link address (workers and hosts only).
    """

    service: ServiceName
    id: str
    pid: int
    host: str
    address: bytes | None = None


class Joined(Message, frozen=True, kw_only=True):
    """Registry -> process: carry this epoch in everything you say."""

    epoch: int


class Beat(Message, frozen=True, kw_only=True):
    """Heartbeat of a process that has nothing else to report."""

    service: ServiceName
    id: str
    epoch: int


class EngineLoad(Message, frozen=True, kw_only=True):
    """What an engine has to do and has room for. Rates are None until they have been measured: unknown, not zero.

    `waiting_tokens`: prompt tokens admitted and not yet prefilled.
    """

    waiting_requests: int
    waiting_tokens: int
    running_requests: int
    max_requests: int
    kv_blocks_used: int
    kv_blocks_total: int
    kv_block_tokens: int
    prefill_tokens_per_second: float | None = None
    decode_tokens_per_second: float | None = None


class Holding(Message, frozen=True, kw_only=True):
    """Blocks of one model version that are whole and verified in this process's memory.

    A version is known once every block is, so it is empty while a host reads the model from disk.
    """

    model: str
    version: str
    ready: list[int]
    total: int


class WorkerReport(Message, frozen=True, kw_only=True):
    """A worker's heartbeat, 2 Hz and on every change. `instance` and `model` are None on a spare.

    `plan_id`: the plan that it loads or loaded for.
    """

    id: str
    epoch: int
    state: WorkerState
    model: str | None = None
    version: str | None = None
    instance: str | None = None
    plan_id: str | None = None
    role: Role | None = None
    rank: int = 0
    holding: Holding | None = None
    arena_bytes: int = 0
    load: EngineLoad | None = None
    flows_out: int = 0


class HostReport(Message, frozen=True, kw_only=True):
    """A host's heartbeat: its cache, its transfers under way."""

    id: str
    epoch: int
    holdings: list[Holding] = []
    cache_bytes: int = 0
    cache_limit_bytes: int = 0
    flows_out: int = 0


class QueueLoad(Message, frozen=True, kw_only=True):
    """A model's queue at the router. `running`: requests admitted to workers and not yet ended."""

    model: str
    waiting_requests: int
    waiting_tokens: int
    oldest_seconds: float
    running: int


class RouterReport(Message, frozen=True, kw_only=True):
    """The router's heartbeat: a queue per model."""

    id: str
    epoch: int
    queues: list[QueueLoad] = []


Report = Beat | WorkerReport | HostReport | RouterReport


class LeaseChanged(Message, frozen=True, kw_only=True):
    """Event of the registry, the only judge of who is alive."""

    service: ServiceName
    id: str
    epoch: int
    state: LeaseState
    reason: str
    at: float


class Stale(Message, frozen=True, kw_only=True):
    """Registry -> a process that speaks with an old epoch: join again (a worker rejoins as spare).

    `epoch` is the one that is refused.
    """

    id: str
    epoch: int


class Member(Message, frozen=True, kw_only=True):
    """A process as the registry knows it."""

    service: ServiceName
    id: str
    pid: int
    host: str
    epoch: int
    lease: LeaseState
    address: bytes | None = None


class ModelEntry(Message, frozen=True, kw_only=True):
    """A registered model. `state` is "reading" until a host has it in memory; `error` says why it is "failed"."""

    spec: ModelSpec
    state: Literal["reading", "ready", "failed"]
    version: str | None = None
    size_bytes: int = 0
    blocks: int = 0
    max_model_len: int = 0
    created: int = 0
    error: str | None = None


class AskSnapshot(Message, frozen=True):
    """Ask the registry for its whole picture."""


class Snapshot(Message, frozen=True, kw_only=True):
    """The registry's picture: members, the last report of every live worker and host, the models."""

    members: list[Member] = []
    workers: list[WorkerReport] = []
    hosts: list[HostReport] = []
    models: list[ModelEntry] = []


class Register(Message, frozen=True, kw_only=True):
    """Operator -> registry: serve this model. Answered once the checkpoint was checked (not yet read)."""

    spec: ModelSpec


class Named(Message, frozen=True, kw_only=True):
    """Any question about one model."""

    model: str


class ModelList(Message, frozen=True, kw_only=True):
    """The registered models."""

    models: list[ModelEntry] = []


class AskModels(Message, frozen=True):
    """Ask for the registered models."""


class AskMetrics(Message, frozen=True):
    """Ask a process for its metrics."""


class MetricsText(Message, frozen=True, kw_only=True):
    """Prometheus text exposition of one process."""

    text: str
