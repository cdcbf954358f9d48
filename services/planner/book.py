"""The planner's book of scales: those that run and those that were. Pure."""

from collections import Counter
from collections.abc import Iterator
from itertools import count

from livescale.services.planner.scale_out import ScaleOut
from livescale.services.planner.scales import Scale
from livescale.shared.messages.scaling import ScaleRecord
from livescale.shared.policy.invariants import check

KEPT = 500
TICKETS = 1 << 24


class Book:
    """Scales by id, oldest first. `first_ticket` should differ from one planner process to the next."""

    def __init__(self, first_ticket: int) -> None:
        self._scales: dict[str, Scale] = {}
        self._past: list[ScaleRecord] = []
        self._tickets = count(first_ticket)

    def add(self, scale: Scale) -> None:
        self._scales[scale.id] = scale
        ended = [one.id for one in self._scales.values() if one.ended]
        for id in ended[: max(0, len(self._scales) - KEPT)]:
            del self._scales[id]

    def remember(self, records: list[ScaleRecord]) -> None:
        """Scales of an earlier planner, oldest first, which have ended or have yet to be taken over."""
        self._past = records

    def get(self, id: str) -> Scale | None:
        return self._scales.get(id)

    def running(self) -> list[Scale]:
        return [scale for scale in self._scales.values() if not scale.ended]

    def concerned(self, instance: str) -> list[Scale]:
        """Scales that add or take away this instance; an ended one still wants to know its first token."""
        return [scale for scale in self._scales.values() if instance in scale.instances]

    def coming(self, model: str) -> frozenset[str]:
        """Instances of this model that running plans will add."""
        return frozenset(id for scale in self.running() if scale.model == model for id in scale.coming)

    def leaving(self) -> frozenset[str]:
        return frozenset(id for scale in self.running() for id in scale.leaving)

    def reserved(self) -> frozenset[str]:
        """Workers that running plans have taken."""
        return frozenset(worker for scale in self.running() for worker in scale.reserved)

    def sending(self) -> Counter[str]:
        """How many flows each node sends."""
        return sum((scale.sending for scale in self._outs()), Counter())

    def receiving(self, version: str, shard: int) -> frozenset[str]:
        """Workers that are going to have all of this shard of this version."""
        outs = [scale for scale in self._outs() if scale.plan.version == version]
        return frozenset(id for scale in outs for id in scale.receiving if scale.delivery.orders.rank_of(id) == shard)

    def live(self) -> frozenset[str]:
        """Workers that take requests while they load: better not sources of others too."""
        return frozenset(id for scale in self._outs() for id in scale.live)

    def fresh_tickets(self) -> Iterator[int]:
        """24-bit numbers that no running plan has."""
        taken = {flow.ticket for scale in self._outs() for flow in scale.delivery.flows}
        return (ticket for ticket in (number % TICKETS for number in self._tickets) if ticket not in taken)

    def _outs(self) -> list[ScaleOut]:
        return [scale for scale in self.running() if isinstance(scale, ScaleOut)]

    def records(self, model: str | None, limit: int) -> list[ScaleRecord]:
        """The newest `limit` of one model, or of all; newest last."""
        past = [record for record in self._past if record.id not in self._scales]
        every = [*past, *(scale.record() for scale in self._scales.values())]
        chosen = [record for record in every if model is None or record.decision.model == model]
        return chosen[-limit:] if limit > 0 else []

    def check_invariants(self) -> None:
        """A worker, a new or a leaving instance and a ticket belong to one running scale, and each scale's targets have
        routes as they should. Raises InvariantBroken."""
        check(self._broken())
        for scale in self.running():
            if isinstance(scale, ScaleOut):
                scale.check_invariants()

    def _broken(self) -> Iterator[str]:
        owners: dict[str, str] = {}
        for scale in self.running():
            for taken in _taken(scale):
                if taken in owners:
                    yield f"book: {taken} belongs to {owners[taken]} and to {scale.id}"
                owners[taken] = scale.id
            if scale.state == "planned":
                yield f"book: {scale.id} was never started"


def _taken(scale: Scale) -> Iterator[str]:
    yield from sorted(scale.reserved)
    # What one scale added may be drained by another while the rest of the first still loads.
    yield from (f"new {instance}" for instance in sorted(scale.coming))
    yield from (f"leaving {instance}" for instance in sorted(scale.leaving))
    if isinstance(scale, ScaleOut):
        yield from (f"ticket {ticket}" for ticket in sorted(flow.ticket for flow in scale.delivery.flows))
