"""A scale's life: decision -> plan -> load and send -> serve; its way back, drain; and roles that operators order."""

from typing import Annotated, Literal

from msgspec import Meta

from livescale.shared.messages.membership import Role
from livescale.shared.messages.message import Amount, Count, Message, Name, Positive, TraceParent
from livescale.shared.messages.transfers import LiveMode, Plan

Action = Literal["out", "in", "switch", "hold"]
ScaleState = Literal["planned", "loading", "draining", "switching", "done", "failed"]


class Decision(Message, frozen=True, kw_only=True):
    """What the monitor (or an operator) decided of one model, and from what. Unknown inputs are None.

    `roles`: how many instances are to have each role then; empty where roles are as the planner sees fit. To `switch`
    is to have as many instances with other roles. Nobody was asked to carry out `advice`. `traceparent`: of the
    request that had waited longest then, where requests are traced.
    """

    id: Name
    model: Name
    at: Amount
    action: Action
    current: Count
    target: Count
    rule: str
    reason: str
    by: Literal["monitor", "operator"]
    inputs: dict[str, Annotated[float, Meta(ge=-1e15, le=1e15)] | None] = {}
    traceparent: TraceParent | None = None
    roles: dict[Role, Count] = {}
    advice: bool = False


class Scale(Message, frozen=True, kw_only=True):
    """Monitor or operator -> planner: have this many instances. The planner never blocks on a transfer.

    An operator by hand leaves `decision` out. `live`: the mode of this scale; None is the planner's setting.
    """

    model: Name
    instances: Count
    decision: Decision | None = None
    live: LiveMode | None = None


class ScaleAccepted(Message, frozen=True, kw_only=True):
    """`scale_id` is None where nothing had to be done. `actual` counts instances that serve or load, `recalled` those
    of them that drained until now."""

    scale_id: Name | None
    actual: Count
    target: Count
    reason: str
    recalled: Count = 0


class RoleMove(Message, frozen=True, kw_only=True):
    """An instance that serves and gets another role, by its leading worker. Nothing is loaded or drained for it."""

    worker: Name
    instance: Name
    epoch: Count
    role: Role
    before: Role | None = None
    reason: str = ""


class Phase(Message, frozen=True, kw_only=True):
    """A moment of a scale: its name, its node, when it was (seconds since the epoch), and why where that is not
    plain."""

    name: str
    at: Amount
    node: Name | None = None
    detail: str = ""


class PipelineRecord(Message, frozen=True, kw_only=True):
    """The history of an execution pipeline. Times are seconds since the epoch, None for what has not happened.

    `stages` says which worker runs which blocks, in order. `ready_at` is when its members had every block between them,
    and `running_at` when its leader began to run it. `switching_at` is when the leader was told to serve alone; all
    members prepare for that first. `kv_ways` says how each member got the KV of its requests. `reason` says why the
    pipeline ended, or why it never ran.
    """

    id: Name
    stages: list[str] = []
    ready_at: Amount | None = None
    running_at: Amount | None = None
    first_token_at: Amount | None = None
    switching_at: Amount | None = None
    kv_ways: dict[Name, str] = {}
    ended_at: Amount | None = None
    reason: str = ""


class ScaleRecord(Message, frozen=True, kw_only=True):
    """Everything known of one scale, for `livescale why`.

    `arrived`: by target when each block was ready, in their order and in seconds since the epoch, None for those that
    are not; empty for large plans. `pipelines`: one for each of the plan's. `moves`: instances that get another role.
    """

    id: Name
    decision: Decision
    state: ScaleState
    plan: Plan | None = None
    instances: list[Name] = []
    phases: list[Phase] = []
    outcome: str = ""
    arrived: dict[Name, list[Amount | None]] = {}
    pipelines: list[PipelineRecord] = []
    moves: list[RoleMove] = []


class AskScales(Message, frozen=True, kw_only=True):
    """Ask the planner for its records of one model, or of all; newest last."""

    model: Name | None = None
    limit: Positive = 20


class ScaleRecords(Message, frozen=True, kw_only=True):
    """The planner's answer: records of scales, the newest last."""

    records: list[ScaleRecord] = []


class AskDecisions(Message, frozen=True, kw_only=True):
    """Ask the monitor for its last decisions of one model, holds included; newest last."""

    model: Name | None = None
    limit: Positive = 20


class Decisions(Message, frozen=True, kw_only=True):
    """The monitor's answer: its decisions, the newest last."""

    decisions: list[Decision] = []


class SetRole(Message, frozen=True, kw_only=True):
    """Operator or router -> planner: have the instance that this worker leads prefer this work. Nothing is loaded or
    drained.

    `reason`: why the router wants it; an operator by hand leaves it out, and the planner keeps a record of the order.
    Refused with 404 for an unknown worker, with 409 for one that leads no instance.
    """

    worker: Name
    role: Role
    reason: str = ""


class RoleSet(Message, frozen=True, kw_only=True):
    """Planner -> operator: the instance has this role, and had the other one before."""

    worker: Name
    instance: Name
    role: Role
    before: Role | None = None
