"""Plans the roles of a model's instances: of new ones, and of those that are there. Pure.

A change of role loads nothing. So where decode lacks instances, some that prefill decode from the next request on, and
new ones are loaded to prefill in their place: these take prompts while they load, which decode cannot (BlitzScale 5.4).
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from livescale.services.planner.fleet import ModelView
from livescale.services.planner.settings import PlannerSettings
from livescale.services.planner.store import ScaleStore
from livescale.shared.messages.membership import Role, WorkerReport
from livescale.shared.messages.scaling import Decision, RoleMove
from livescale.shared.messages.transfers import PlannedInstance
from livescale.shared.runtime.role_settings import DecodeScaling

OTHER: Mapping[Role, Role] = {"prefill": "decode", "decode": "prefill"}
EVEN_SHARE = 0.5  # prefills, of new instances of which nobody says how many should


class RolePlan(NamedTuple):
    """The instances that get another role, the roles of new ones, and why."""

    moves: tuple[RoleMove, ...]
    roles: tuple[Role, ...]
    reasons: tuple[str, ...]


class RolePlanner:
    """Plans roles by the settings, and counts with what running scales add, remove and change."""

    def __init__(self, settings: PlannerSettings, store: ScaleStore) -> None:
        self._settings = settings
        self._store = store

    def plan(self, decision: Decision, view: ModelView, count: int) -> RolePlan:
        """Plan the roles of so many new instances and of those that are there: as the load needs, if the decision says
        so, else by a share. Where roles are not on, and for several ranks, all do everything."""
        model, settings = view.entry.spec, self._settings
        if model.disaggregation_in(settings.disaggregation) != "on":
            everything: list[Role] = ["colocated"] * count
            return RolePlan((), tuple(everything), ())
        there = self.there(view)
        if decision.roles and settings.prefill_share is None:
            return plan_roles(there, view.snapshot.workers, decision.roles, count, settings.decode_scaling)
        share = EVEN_SHARE if settings.prefill_share is None else settings.prefill_share
        roles, reasons = choose_roles(there.values(), count, share)
        return RolePlan((), tuple(roles), tuple(reasons))

    def there(self, view: ModelView) -> dict[str, Role | None]:
        """The role of each instance that stays, by its id, as running scales will have it."""
        name, store = view.entry.spec.name, self._store
        return roles_of(name, view.snapshot.workers, store.planned(name), store.leaving(), store.moving())


def roles_of(
    model: str,
    workers: Iterable[WorkerReport],
    planned: Iterable[PlannedInstance],
    leaving: Iterable[str],
    moving: Mapping[str, Role] = MappingProxyType({}),
) -> dict[str, Role | None]:
    """The role of each instance that is there or planned, by its id, as its worker says if it can, or as it is told to
    take one (`moving`). Instances that are `leaving` are left out."""
    reported: Mapping[str, Role | None] = {
        report.instance: report.role
        for report in workers
        if report.model == model and report.rank == 0 and report.instance is not None and report.state != "draining"
    }
    roles = {**{one.id: one.role for one in planned}, **reported}
    roles |= {id: role for id, role in moving.items() if id in roles}
    return {id: role for id, role in roles.items() if id not in set(leaving)}


def choose_roles(present: Iterable[Role | None], count: int, prefill_share: float) -> tuple[list[Role], list[str]]:
    """Choose the roles of so many new instances, and say why.

    The first of a model prefills and the second decodes; from then on a share of all that have one of these roles
    prefills.
    """
    there = list(present)
    prefill, decode = there.count("prefill"), there.count("decode")
    chosen: list[Role] = []
    for _ in range(count):
        lacks_prefill = prefill == 0 or (decode > 0 and prefill < prefill_share * (prefill + decode + 1))
        chosen.append("prefill" if lacks_prefill else "decode")
        prefill, decode = prefill + lacks_prefill, decode + (not lacks_prefill)
    here = f"{there.count('prefill')} prefill and {there.count('decode')} decode"
    return chosen, [
        f"roles {', '.join(chosen)}: of those there, {here}, and a share of {prefill_share:g} is to prefill"
    ]


def plan_roles(
    there: Mapping[str, Role | None],
    workers: Iterable[WorkerReport],
    wanted: Mapping[Role, int],
    count: int,
    scaling: DecodeScaling,
) -> RolePlan:
    """Plan roles with `count` new instances, so that of all there are as many as `wanted` of each role.

    `there` has the role of every instance that is there or planned, by its id. Only those that serve get another role,
    the ones with the fewest KV blocks first; one that prefills is kept.
    """
    numbers = {role: list(there.values()).count(role) for role in OTHER}
    lack: dict[Role, int] = {role: wanted.get(role, 0) - numbers[role] for role in OTHER}
    into: Role = "decode" if lack["decode"] >= lack["prefill"] else "prefill"
    giver = OTHER[into]
    surplus = max(0, -lack[giver])
    if into == "decode":
        replaced = min(count, numbers[giver]) if scaling == "mutate" else 0
        surplus = min(surplus + replaced, numbers[giver] - 1)
    leaders = [one for one in workers if one.rank == 0 and one.state == "serving" and one.instance in there]
    able = sorted((_blocks(one), one.id, one) for one in leaders if there[str(one.instance)] == giver)
    moved = [one for _, _, one in able][: max(0, min(surplus, lack[into]))]
    moves = tuple(_move(one, giver, into, count, len(moved)) for one in moved)
    first = [giver] * max(0, lack[giver] + len(moves)) + [into] * max(0, lack[into] - len(moves))
    roles = (first + ["prefill"] * count)[:count]
    here = f"{numbers['prefill']} prefill and {numbers['decode']} decode"
    goal = ", ".join(f"{number} to {role}" for role, number in sorted(wanted.items()))
    reasons = (f"roles: {here}, the load wants {goal}", *(f"{move.worker}: {move.reason}" for move in moves))
    return RolePlan(moves, tuple(roles), reasons)


def _blocks(report: WorkerReport) -> int:
    return 0 if report.load is None else report.load.kv_blocks_used


def _move(one: WorkerReport, before: Role, role: Role, count: int, moved: int) -> RoleMove:
    instead = f", and {count} new instances take its place" if count else ""
    reason = f"{before} -> {role}: of those that {before} it has the fewest KV blocks ({_blocks(one)}){instead}"
    return RoleMove(worker=one.id, instance=str(one.instance), epoch=one.epoch, role=role, before=before, reason=reason)
