"""The scales that run, those that have ended, and what the running ones add, take and send. Pure."""

from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from itertools import count, islice

from msgspec.structs import replace

from livescale.services.planner.running_scale import RunningScale
from livescale.services.planner.scale_in import ScaleIn
from livescale.services.planner.scale_out import ScaleOut
from livescale.services.planner.targets import FlowsUnderWay
from livescale.shared.messages.membership import Role
from livescale.shared.messages.scaling import Phase, ScaleRecord
from livescale.shared.messages.transfers import Plan, PlannedInstance
from livescale.shared.policy.invariants import check
from livescale.shared.transfer.chunks import TICKETS

KEPT = 500  # scales
DRAINED = "it had served, as a scale in drained it"


class ScaleStore:
    """Scales by id, oldest first.

    Flows are told apart by tickets. `first_ticket` should lie behind all that an earlier planner process gave: a worker
    ignores flows that it has been told of before.
    """

    def __init__(self, first_ticket: int) -> None:
        self._scales: dict[str, RunningScale] = {}
        self._running: dict[str, RunningScale] = {}  # and those whose end nobody has asked for yet
        self._past: list[ScaleRecord] = []
        self._tickets = count(first_ticket)

    def add(self, scale: RunningScale) -> None:
        """Keep a scale. The oldest that have ended are forgotten once there are more than `KEPT`."""
        self._scales[scale.id] = self._running[scale.id] = scale
        ended = [one.id for one in self._scales.values() if one.ended]
        for id in ended[: max(0, len(self._scales) - KEPT)]:
            del self._scales[id]

    def remember(self, records: list[ScaleRecord]) -> None:
        """Keep the records of an earlier planner, oldest first. Those scales have ended or have yet to be taken
        over."""
        self._past = records

    def with_drained(self, record: ScaleRecord, plan: Plan, now: float) -> ScaleRecord:
        """Note in an earlier planner's record that the targets served that a scale in has drained since: that planner
        saw it, and may have ended before it saved it."""
        scales = self._newest_first(record.decision.model)
        drained = {id for one in scales if one.decision.action == "in" for id in one.instances}
        served = {worker for one in plan.instances if one.id in drained for worker in one.ranks}
        new = sorted(served - {phase.node for phase in record.phases if phase.name == "serving"})
        phases = [Phase(name="serving", at=now, node=worker, detail=DRAINED) for worker in new]
        return replace(record, phases=[*record.phases, *phases])

    def get(self, id: str) -> RunningScale | None:
        """Return the scale of this id, or None if it is not known."""
        return self._scales.get(id)

    def running(self) -> list[RunningScale]:
        """Return the scales that have not ended yet, oldest first."""
        # This is asked at every heartbeat: going through all scales, of which hundreds have ended, would take too long.
        for scale in [one for one in self._running.values() if one.ended]:
            del self._running[scale.id]
        return list(self._running.values())

    def concerned(self, instance: str) -> list[RunningScale]:
        """Return the scales that add or remove this instance, ended ones too: its first token comes after the end."""
        return [scale for scale in self._scales.values() if instance in scale.instances]

    def coming(self, model: str) -> frozenset[str]:
        """Return the instances of this model that running scales are going to add."""
        return frozenset(id for scale in self.running() if scale.model == model for id in scale.coming)

    def recalling(self, instances: AbstractSet[str]) -> list[ScaleIn]:
        """Return the running scales that have recalled any of these instances."""
        return [one for one in self.running() if isinstance(one, ScaleIn) and one.coming & instances]

    def planned(self, model: str) -> list[PlannedInstance]:
        """Return the instances of this model that running scales are going to add, as they were planned."""
        coming = self.coming(model)
        return [one for scale in self._outs() for one in scale.plan.instances if one.id in coming]

    def moving(self) -> dict[str, Role]:
        """Return the roles that instances are going to have, where their workers have not said so yet."""
        return {id: role for scale in self.running() for id, role in scale.moving.items()}

    def leaving(self) -> frozenset[str]:
        """Return the instances that running scales are going to remove."""
        return frozenset(id for scale in self.running() for id in scale.leaving)

    def reserved(self) -> frozenset[str]:
        """Return the workers that running scales have taken, which no other plan may use."""
        return frozenset(worker for scale in self.running() for worker in scale.reserved)

    def sending(self) -> Counter[str]:
        """Count the flows that each node sends for running scales."""
        return sum((scale.sending for scale in self._outs()), Counter())

    def receiving(self, version: str, shard: int) -> frozenset[str]:
        """Return the workers that are going to have all of this shard of this version, and can pass it on.

        None of them receives from a stranded target, of whatever plan: two could then wait for each other.
        """
        deliveries = [scale.delivery for scale in self._outs()]
        flows = FlowsUnderWay(flow for delivery in deliveries for flow in delivery.flows)
        behind = flows.behind([worker for delivery in deliveries for worker in delivery.stranded])
        outs = [scale for scale in self._outs() if scale.plan.version == version]
        receiving = {id for scale in outs for id in scale.receiving if scale.delivery.orders.rank_of(id) == shard}
        return frozenset(receiving - behind)

    def live(self) -> frozenset[str]:
        """Return the workers that take requests while they load. Plans avoid them as sources."""
        return frozenset(id for scale in self._outs() for id in scale.live)

    def fresh_tickets(self) -> Iterator[int]:
        """Yield 24-bit numbers that no flow of a running scale has."""
        taken = {flow.ticket for scale in self._outs() for flow in scale.delivery.flows}
        return (ticket for ticket in (number % TICKETS for number in self._tickets) if ticket not in taken)

    def _outs(self) -> list[ScaleOut]:
        return [scale for scale in self.running() if isinstance(scale, ScaleOut)]

    def records(self, model: str | None, limit: int) -> list[ScaleRecord]:
        """Return the newest `limit` records of one model, or of all if it is None, the newest last."""
        newest = islice(self._newest_first(model), max(limit, 0))
        return list(newest)[::-1]

    def _newest_first(self, model: str | None) -> Iterator[ScaleRecord]:
        for scale in reversed(self._scales.values()):
            if model in (None, scale.model):
                yield scale.record()
        for record in reversed(self._past):
            if record.id not in self._scales and model in (None, record.decision.model):
                yield record

    def check_invariants(self) -> None:
        """Check that no worker, instance or ticket belongs to two running scales, and what each scale out checks.

        Raises InvariantBroken.
        """
        check(self._broken())
        for scale in self.running():
            if isinstance(scale, ScaleOut):
                scale.check_invariants()

    def _broken(self) -> Iterator[str]:
        owners: dict[str, str] = {}
        for scale in self.running():
            for taken in _taken(scale):
                if taken in owners:
                    yield f"scale store: {taken} belongs to {owners[taken]} and to {scale.id}"
                owners[taken] = scale.id
            if scale.state == "planned":
                yield f"scale store: {scale.id} was never started"


def _taken(scale: RunningScale) -> Iterator[str]:
    yield from sorted(scale.reserved)
    # What one scale added may be drained by another, and recalled, while the rest of the first still loads.
    comes = "new" if isinstance(scale, ScaleOut) else "recalled"
    yield from (f"{comes} {instance}" for instance in sorted(scale.coming))
    yield from (f"leaving {instance}" for instance in sorted(scale.leaving))
    if isinstance(scale, ScaleOut):
        yield from (f"ticket {ticket}" for ticket in sorted(flow.ticket for flow in scale.delivery.flows))
