"""A scale's life: decision -> plan -> load and send -> serve; and its way back, drain."""

from typing import Literal

from shared.messages.membership import Role
from shared.messages.message import Message
from shared.messages.parameters import Manifest, ModelSpec, Place

Action = Literal["out", "in", "hold"]
ScaleState = Literal["planned", "loading", "draining", "done", "failed"]
TransferState = Literal["started", "whole", "failed"]


class Decision(Message, frozen=True, kw_only=True):
    """What the monitor (or an operator) decided of one model, and from what. Unknown inputs are None."""

    id: str
    model: str
    at: float
    action: Action
    current: int
    target: int
    rule: str
    reason: str
    by: Literal["monitor", "operator"]
    inputs: dict[str, float | None] = {}


class Scale(Message, frozen=True, kw_only=True):
    """Monitor or operator -> planner: have this many instances. The planner never blocks on a transfer.

    An operator by hand leaves `decision` out.
    """

    model: str
    instances: int
    decision: Decision | None = None


class ScaleAccepted(Message, frozen=True, kw_only=True):
    """`scale_id` is None where nothing had to be done. `actual` counts instances that serve or load."""

    scale_id: str | None
    actual: int
    target: int
    reason: str


class Node(Message, frozen=True, kw_only=True):
    """One end of a transfer."""

    id: str
    place: Place
    address: bytes


class Chain(Message, frozen=True, kw_only=True):
    """One path of parameters: source, then each target in order; every target forwards to the next."""

    source: str
    targets: list[str]


class PlannedInstance(Message, frozen=True, kw_only=True):
    """An instance is a list of ranks (worker ids); rank 0 leads."""

    id: str
    ranks: list[str]
    role: Role = "colocated"


class Plan(Message, frozen=True, kw_only=True):
    """Who sends the parameters of `version` to whom. `reasons` says why these sources and targets."""

    id: str
    model: str
    version: str
    instances: list[PlannedInstance]
    chains: list[Chain]
    size_bytes: int
    reasons: list[str] = []


class Load(Message, frozen=True, kw_only=True):
    """Planner -> worker: receive these parameters from `upstream`, forwarding to `downstream` as chunks arrive.

    `ticket` names the transfer in tags and must match at both ends. `max_model_len` sizes the KV cache.
    """

    plan_id: str
    ticket: int
    model: str
    instance: str
    role: Role
    rank: int
    manifest: Manifest
    upstream: Node
    downstream: list[Node] = []
    chunk_bytes: int
    max_model_len: int
    epoch: int


class Send(Message, frozen=True, kw_only=True):
    """Planner -> worker or host: send the blocks of a version that you hold to `downstream`."""

    plan_id: str
    ticket: int
    version: str
    downstream: list[Node]
    chunk_bytes: int
    epoch: int


class Serve(Message, frozen=True, kw_only=True):
    """Planner -> worker: all ranks are whole, take requests."""

    plan_id: str
    instance: str
    epoch: int


class Drain(Message, frozen=True, kw_only=True):
    """Planner -> worker: take no new request, finish what runs, become spare."""

    instance: str
    epoch: int


class Abort(Message, frozen=True, kw_only=True):
    """Planner -> worker or host: this plan is over; free what it holds. Idempotent."""

    plan_id: str
    reason: str


class Transfer(Message, frozen=True, kw_only=True):
    """Event: how a node's part in a plan stands. Times in seconds since the epoch.

    A target reports "started" at its first byte and "whole" when every block is verified; "failed" with `error`.
    """

    plan_id: str
    node: str
    state: TransferState
    at: float
    received_bytes: int = 0
    first_byte_at: float | None = None
    error: str | None = None


class BlockReady(Message, frozen=True, kw_only=True):
    """Event: a block is whole and its checksum right, at this worker."""

    worker: str
    model: str
    instance: str
    plan_id: str
    index: int
    ready: int
    total: int
    at: float


class InstanceServing(Message, frozen=True, kw_only=True):
    """Event: an instance took up service, or made its first token (`what`)."""

    instance: str
    model: str
    worker: str
    plan_id: str
    what: Literal["serving", "first_token", "spare"]
    at: float


class Phase(Message, frozen=True, kw_only=True):
    """One moment of a scale: name, who, and when (seconds since the epoch)."""

    name: str
    at: float
    node: str | None = None


class ScaleRecord(Message, frozen=True, kw_only=True):
    """Everything known of one scale, for `livescale why`."""

    id: str
    decision: Decision
    state: ScaleState
    plan: Plan | None = None
    instances: list[str] = []
    phases: list[Phase] = []
    outcome: str = ""


class AskScales(Message, frozen=True, kw_only=True):
    """Ask the planner for its records of one model, or of all; newest last."""

    model: str | None = None
    limit: int = 20


class ScaleRecords(Message, frozen=True, kw_only=True):
    """Newest last."""

    records: list[ScaleRecord] = []


class AskDecisions(Message, frozen=True, kw_only=True):
    """Ask the monitor for its last decisions of one model, holds included; newest last."""

    model: str | None = None
    limit: int = 20


class Decisions(Message, frozen=True, kw_only=True):
    """Newest last."""

    decisions: list[Decision] = []


class ReadModel(Message, frozen=True, kw_only=True):
    """Registry -> host: check this checkpoint and start to read it into the host cache."""

    spec: ModelSpec


class ModelChecked(Message, frozen=True, kw_only=True):
    """Host -> registry: the checkpoint is well-formed; reading has begun."""

    size_bytes: int
    blocks: int
    max_model_len: int


class ModelRead(Message, frozen=True, kw_only=True):
    """Event of a host: a model is whole in its cache, or could not be read."""

    host: str
    model: str
    manifest: Manifest | None = None
    error: str | None = None
