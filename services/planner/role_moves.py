"""Which instances of a model get another role, and which roles new ones get. Pure.

A change of role loads nothing. So where decode lacks instances, some that prefill decode from the next request on, and
new ones are loaded to prefill in their place: these take prompts while they load, which decode cannot (BlitzScale 5.4).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from livescale.services.planner.running_scale import NodeCommand
from livescale.shared.messages.disaggregation import ChangeRole
from livescale.shared.messages.membership import LeaseChanged, Role, WorkerReport
from livescale.shared.messages.scaling import RoleMove
from livescale.shared.runtime.role_settings import DecodeScaling

OTHER: Mapping[Role, Role] = {"prefill": "decode", "decode": "prefill"}


class RolePlan(NamedTuple):
    """The instances that get another role, the roles of new ones, and why."""

    moves: tuple[RoleMove, ...]
    roles: tuple[Role, ...]
    reasons: tuple[str, ...]


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


class RoleMoves:
    """The changes of roles in one scale: which of them are done, and which are still awaited.

    A worker is told again until it answers. Its own reports say that it has the role, whatever became of the answer.
    """

    def __init__(self, moves: Sequence[RoleMove] = ()) -> None:
        self.all = list(moves)
        self._awaited = {move.worker: move for move in moves}

    @property
    def awaited(self) -> list[RoleMove]:
        """The changes that no report has shown yet, and that may still come."""
        return list(self._awaited.values())

    def commands(self) -> Iterator[NodeCommand]:
        """Yield the orders for all that are awaited. An order that is repeated changes nothing."""
        for move in self._awaited.values():
            order = ChangeRole(instance=move.instance, role=move.role, epoch=move.epoch)
            yield NodeCommand(move.worker, order, move.reason)

    def settle(self, worker: str) -> RoleMove | None:
        """Await this worker's change no longer. Returns it, if it was awaited."""
        return self._awaited.pop(worker, None)

    def awaits(self, worker: str) -> bool:
        return worker in self._awaited

    def shown(self, report: WorkerReport) -> bool:
        """Whether a report shows a change that was awaited."""
        move = self._awaited.get(report.id)
        return move is not None and (report.instance, report.role) == (move.instance, move.role)

    def ended_by(self, report: WorkerReport) -> bool:
        """Whether a report shows that an awaited change will not come: the worker has another instance, or none."""
        move = self._awaited.get(report.id)
        return move is not None and report.epoch >= move.epoch and report.instance != move.instance

    def is_gone(self, change: LeaseChanged) -> bool:
        """Whether a change is awaited of a worker that is dead, or was started anew."""
        move = self._awaited.get(change.id)
        return move is not None and (change.state == "dead" or change.epoch > move.epoch)
