"""How many instances of a model have which role, and what of their KV is still to be sent. Pure."""

from collections.abc import Collection, Iterable, Mapping
from statistics import median

from msgspec import Struct

from livescale.shared.messages.membership import Role, WorkerReport
from livescale.shared.messages.scaling import ScaleRecord


class RoleLoad(Struct, frozen=True):
    """The instances of a model by role, once the plans under way are carried out.

    `others` do everything. `unsent_tokens` are those of prompts that wait at instances of the role prefill, or whose KV
    lies there. `kv_rate` is how many of them a second one instance sends; None while that was not measured. `idle` are
    the roles of which an instance serves and has no request.
    """

    prefill: int = 0
    decode: int = 0
    others: int = 0
    unsent_tokens: int = 0
    kv_rate: float | None = None
    idle: frozenset[Role] = frozenset()


def observe_roles(
    reports: Collection[WorkerReport], records: Collection[ScaleRecord], model: str, leaving: Collection[str]
) -> RoleLoad:
    """Count roles as the leading workers of a model report them, with what running scales change."""
    roles = {**_planned(records, model), **{str(report.instance): report.role for report in reports}}
    moved = {move.instance: move.role for record in records for move in record.moves}
    kept = [moved.get(id, role) for id, role in roles.items() if id not in leaving]
    prefill, decode = kept.count("prefill"), kept.count("decode")
    rates = [r.load.kv_tokens_per_second for r in reports if r.load and r.load.kv_tokens_per_second]
    kv_rate = median(rates) if rates else None
    staying = [r for r in reports if r.instance not in leaving and _is_idle(r)]
    idle = frozenset(moved.get(str(r.instance), r.role or "colocated") for r in staying)
    return RoleLoad(prefill, decode, len(kept) - prefill - decode, _unsent(reports, moved), kv_rate, idle)


def _is_idle(report: WorkerReport) -> bool:
    load = report.load
    if report.state != "serving" or load is None or report.sending_kv:
        return False
    return not (load.waiting_requests or load.waiting_tokens or load.running_requests or load.reserved_requests)


def _planned(records: Iterable[ScaleRecord], model: str) -> Mapping[str, Role]:
    plans = [r.plan for r in records if r.plan is not None and r.state in ("planned", "loading")]
    coming = {id for r in records if r.state in ("planned", "loading") for id in r.instances}
    return {one.id: one.role for plan in plans if plan.model == model for one in plan.instances if one.id in coming}


def _unsent(reports: Iterable[WorkerReport], moved: Mapping[str, Role]) -> int:
    prefilling = [r.load for r in reports if r.load and moved.get(str(r.instance), r.role) == "prefill"]
    return sum(load.waiting_tokens + load.kv_blocks_used * load.kv_block_tokens for load in prefilling)
