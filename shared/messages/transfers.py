"""Carrying out a plan: which node sends which blocks to which other, and what they report."""

from typing import Annotated, Literal

from msgspec import Meta

from livescale.shared.messages.membership import Address, Role
from livescale.shared.messages.message import Amount, Count, Message, Name, Positive
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.parameters import Manifest, NodeKind

TransferState = Literal["started", "broken", "whole", "failed"]
LiveMode = Literal["off", "best-effort", "zigzag", "zigzag-ilp", "pipeline"]
ChunkBytes = Annotated[int, Meta(ge=1024, le=2**31 - 1)]  # smaller ones would be too many
Ticket = Annotated[int, Meta(ge=0, le=2**24 - 1)]  # a part of 64-bit tags
Indexes = Annotated[list[Count], Meta(max_length=2**16)]
Secret = Annotated[bytes, Meta(max_length=64)]


class Node(Message, frozen=True, kw_only=True):
    """One end of a transfer: a worker or a host, where it is, and how its link is reached."""

    id: Name
    place: NodeKind
    address: Address


class Greet(Message, frozen=True, kw_only=True):
    """Worker that has joined -> worker: open a way to me, as I then do to you, so that no plan waits for that later.

    Refused with 503 where it cannot be reached.
    """

    worker: Node


class Flow(Message, frozen=True, kw_only=True):
    """An edge of a plan: `sender` gives `receiver` these blocks, in this order, each chunk as soon as it has it.

    Without `blocks` it gives every block. It gives every `lanes`-th chunk of each block, from the `lane`-th on. A
    sender with `steps`, one for each block, sends in their order over all of its flows. `ticket` names the flow in
    tags. `from_disk`: the sender is a host that does not hold the version, and reads it.
    """

    sender: Name
    receiver: Name
    ticket: Ticket
    blocks: Indexes = []
    lane: Count = 0
    lanes: Positive = 1
    steps: Indexes = []
    from_disk: bool = False


class PlannedInstance(Message, frozen=True, kw_only=True):
    """An instance is a list of ranks (worker ids); rank 0 leads."""

    id: Name
    ranks: list[Name]
    role: Role = "colocated"


class PlannedPipeline(Message, frozen=True, kw_only=True):
    """Targets that are to run the model between them before each of them has it (LambdaScale 4.3).

    `predicted`: how many seconds after the first SEND they should have every block between them, where that is known.
    """

    members: list[Name]
    predicted: Amount | None = None


class Plan(Message, frozen=True, kw_only=True):
    """Which nodes send the parameters of `version` to which others. `reasons` says why these sources and targets.

    `predicted`: how many seconds after the first SEND each target should be whole; empty where rates are not known.
    `predicted_blocks`: the same for each block in their order, None for blocks that a target has; empty for large
    plans, too. When a plan is made anew, both are predicted anew for what had not arrived. `block_seconds`: what a
    block of a schedule is predicted to cost besides its bytes. `setup_seconds`: how long senders wait until their group
    is formed.

    Workers in `live_targets` run requests from their first layer on, in the mode `live`; of an instance with several
    ranks it is the leading one. In the mode pipeline they do so together, as `pipelines` says. A target's flows
    together bring it every byte of every block once. Targets in `parked` have everything, and receive nothing.
    """

    id: Name
    model: Name
    version: Name
    instances: list[PlannedInstance]
    flows: list[Flow]
    size_bytes: Count
    reasons: list[str] = []
    predicted: dict[Name, Amount] = {}
    predicted_blocks: dict[Name, list[Amount | None]] = {}
    block_seconds: Amount = 0.0
    setup_seconds: Amount = 0.0
    live: LiveMode = "off"
    live_targets: list[Name] = []
    pipelines: list[PlannedPipeline] = []
    parked: list[Name] = []

    def is_live(self, instance: PlannedInstance) -> bool:
        """Whether an instance takes requests before it has the whole model."""
        return instance.ranks[0] in self.live_targets

    @property
    def paths(self) -> list[list[str]]:
        """The tree of flows, of several into one node the first, as paths from its roots to its leaves."""
        upstream: dict[str, str] = {}
        for flow in sorted(self.flows, key=lambda flow: flow.steps[:1]):
            upstream.setdefault(flow.receiver, flow.sender)
        paths = [[leaf] for leaf in upstream if leaf not in upstream.values()]
        for path in paths:
            while path[0] in upstream and upstream[path[0]] not in path:
                path.insert(0, upstream[path[0]])
        return paths


class Inflow(Message, frozen=True, kw_only=True):
    """A flow as its receiver sees it: its sender, and the chunks that come along it."""

    ticket: Ticket
    upstream: Node
    blocks: Indexes = []
    lane: Count = 0
    lanes: Positive = 1


class Outflow(Message, frozen=True, kw_only=True):
    """A flow as its sender is told of it. The receiver says which chunks it lacks, in the order in which it wants them.

    `steps` has the step of each of `blocks`; one step follows the other over all flows of the same SEND.
    """

    ticket: Ticket
    downstream: Node
    blocks: Indexes = []
    steps: Indexes = []


class FromDisk(Message, frozen=True, kw_only=True):
    """What a host is to read, and what it has to find there."""

    spec: ModelSpec
    manifest: Manifest


class Load(Message, frozen=True, kw_only=True):
    """Planner -> worker: receive these parameters.

    `max_model_len` sizes the KV cache. When it is told again for the same plan, a worker that still loads keeps what
    arrived and the flows that are named again; its others end, and new ones begin. Where none is new, the command came
    late or twice, and changes nothing. With `live` it takes requests once its embedding is here, and the mode says what
    it computes of them before it is whole. `ranks`: the workers of an instance of several, the leading one first;
    `manifest` is what this worker has of the model. With `parked` nothing is sent: the worker has all of it since it
    last served it, and refuses where that is not so any more. `tbt_slo`: the seconds that a step may take which has
    prompts beside decodes; None leaves it to the worker's own setting.
    """

    plan_id: Name
    model: Name
    instance: Name
    role: Role
    rank: Count
    manifest: Manifest
    inflows: list[Inflow]
    chunk_bytes: ChunkBytes
    max_model_len: Positive
    epoch: Count
    secret: Secret = b""  # proves each end of a flow to the other
    live: LiveMode = "off"
    ranks: list[Name] = []
    parked: bool = False
    tbt_slo: Amount | None = None


class Send(Message, frozen=True, kw_only=True):
    """Planner -> worker or host: send what you hold or are receiving of a version, beside what you send already.

    Each chunk goes out as soon as it is here. A flow that is named again goes on as it is. A host that does not hold
    the version reads it where `from_disk` is given. Blocks are those of `shard`. Nothing goes out before
    `setup_seconds`, in which the nodes of the plan form a group.
    """

    plan_id: Name
    version: Name
    outflows: list[Outflow]
    chunk_bytes: ChunkBytes
    epoch: Count
    secret: Secret = b""
    from_disk: FromDisk | None = None
    shard: Count = 0
    setup_seconds: Amount = 0.0


class Serve(Message, frozen=True, kw_only=True):
    """Planner -> worker: all ranks are whole, take requests. With `recall`, also if the instance is draining."""

    plan_id: Name
    instance: Name
    epoch: Count
    recall: bool = False


class Drain(Message, frozen=True, kw_only=True):
    """Planner -> worker: take no new request, finish what runs, become spare.

    `plan_id`: of the scale in that wants it. Once that scale has recalled the instance, this comes late and changes
    nothing.
    """

    instance: Name
    epoch: Count
    plan_id: Name | None = None


class Abort(Message, frozen=True, kw_only=True):
    """Planner -> worker or host: this plan is over; free what it holds. Idempotent."""

    plan_id: Name
    reason: str


class Transfer(Message, frozen=True, kw_only=True):
    """Event: the progress of a node's part in a plan. Times are in seconds since the epoch.

    A target reports "started" at its first byte, and "whole" when every block is verified. With `error` it reports
    "broken" when the flow `ticket` was lost: it keeps what arrived and waits for another LOAD of the plan, a host for
    another FETCH. A sender that never reached `node` reports it in its place. A target reports "failed" when it gave
    up. `received_bytes` came over the link for this plan. `shared_bytes` are mapped from the memory of another process
    on the same machine.
    """

    plan_id: Name
    node: Name
    state: TransferState
    at: Amount
    ticket: Ticket = 0
    received_bytes: Count = 0
    shared_bytes: Count = 0
    first_byte_at: Amount | None = None
    error: str | None = None

    @property
    def how(self) -> str:
        """How much came and which way, in words: `1.5 MB received, 2.0 MB shared`."""
        ways = (("received", self.received_bytes), ("shared", self.shared_bytes))
        return ", ".join(f"{size_bytes / 1e6:.1f} MB {way}" for way, size_bytes in ways if size_bytes) or "nothing"


class BlockReady(Message, frozen=True, kw_only=True):
    """Event: a block is whole and its checksum right, at this worker."""

    worker: Name
    model: Name
    instance: Name
    plan_id: Name
    index: Count
    ready: Count
    total: Count
    at: Amount


class InstanceServing(Message, frozen=True, kw_only=True):
    """Event: `what` an instance did for the first time. `unasked_seconds`, with its first token: how long it took
    requests before one came. As it is spare, `moved_requests` are those that others went on with, and `kept_requests`
    those that it decoded to their end although it was asked to hand them over, the last of them for `kept_because`."""

    instance: Name
    model: Name
    worker: Name
    plan_id: Name
    what: Literal["first_layer", "serving", "first_token", "spare"]
    at: Amount
    unasked_seconds: Amount = 0.0
    moved_requests: Count = 0
    kept_requests: Count = 0
    kept_because: str = ""
