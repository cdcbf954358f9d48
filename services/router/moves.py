"""Requests that go on at another instance than they began at: their own drains, or is to prefill. Pure."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from math import inf

from livescale.services.router.effects import MoveRequest
from livescale.services.router.fleet import ServingFleet
from livescale.services.router.instances import InstanceView
from livescale.shared.messages.membership import WorkerReport

MOST_AT_ONCE = 4  # from one instance: each pair of workers has one link, and what is sent alone is there sooner
RETRY_SECONDS = 1.0
NEVER = 409  # the code of a worker that cannot hand a request over


class Moves:
    """What is on its way from one instance to another, and what may be.

    An instance that drains gives everything away. Requests that wait for an instance come first, as they need the same
    room. One that prefills gives away what it took in another role, and what it, or who helped it, took while it was
    live: nobody was named to decode that, and it slows the prompts. A request that finds no room elsewhere is decoded
    where it is.
    """

    def __init__(self, fleet: ServingFleet) -> None:
        self._fleet = fleet
        self._not_before: dict[str, dict[str, float]] = {}  # by worker that gives requests away, and request
        self._under_way: defaultdict[str, set[str]] = defaultdict(set)  # likewise

    def heard(self, report: WorkerReport) -> None:
        """Take over whether a worker gives requests away."""
        gives = report.state == "draining" or (report.state == "serving" and report.role == "prefill")
        if not gives:
            self._not_before.pop(report.id, None)
        elif report.rank == 0:
            self._not_before.setdefault(report.id, {})

    @property
    def is_empty(self) -> bool:
        """Whether no worker has requests that are to go on at another one."""
        return not self._not_before

    def due(self, now: float, waits: Callable[[str], bool], splits: Callable[[str], bool]) -> list[MoveRequest]:
        """Begin moves. They wait while a request `waits` for an instance of the model, and what prefills gives nothing
        away unless its model `splits` requests."""
        effects: list[MoveRequest] = []
        for worker in sorted(self._not_before):
            giver = self._fleet.find(worker)
            if giver is None or giver.model is None:
                del self._not_before[worker]
            elif giver.learned and giver.state == "draining" and not waits(giver.model):
                effects += self._moves(giver, list(giver.admitted), now)
            elif giver.learned and giver.state == "serving" and giver.unpaired and splits(giver.model):
                effects += self._moves(giver, list(giver.unpaired), now)
        return effects

    def answered(self, effect: MoveRequest, code: int | None, now: float) -> None:
        """Note that a request has moved, or stays where it is for the reason that this `code` of HTTP tells."""
        self._under_way[effect.worker].discard(effect.request_id)
        giver = self._fleet.find(effect.worker)
        if code is None or giver is None:
            return
        giver.keep(effect.request_id)
        if effect.worker in self._not_before:
            self._not_before[effect.worker][effect.request_id] = inf if code == NEVER else now + RETRY_SECONDS

    def _moves(self, giver: InstanceView, request_ids: Collection[str], now: float) -> Iterator[MoveRequest]:
        under_way, takers = self._under_way[giver.worker], self._takers(giver)
        not_before = self._not_before[giver.worker]
        for request_id in request_ids:
            if len(under_way) >= MOST_AT_ONCE:
                return
            admission = giver.admitted[request_id]
            is_free = admission.confirmed and not admission.stopped and admission.decode is None
            if not is_free or not_before.get(request_id, now) > now:
                continue
            taker = choose_taker(giver, giver.blocks_of(request_id), takers)
            if taker is None:
                return
            why = "drains" if giver.state == "draining" else "prefills"
            reason = f"{giver.worker} {why}, and {taker.worker} has {taker.free_blocks} free blocks"
            giver.promise(request_id, taker.worker)
            under_way.add(request_id)
            yield MoveRequest(giver.worker, giver.epoch, request_id, taker.worker, reason)

    def _takers(self, giver: InstanceView) -> list[InstanceView]:
        alike = (one for one in self._fleet.of_model(giver.model or "") if one.version == giver.version)
        able = [one for one in alike if one.state == "serving" and one.learned and self._fleet.is_open(one)]
        return able if giver.state == "draining" else [one for one in able if one.role != "prefill"]


def choose_taker(giver: InstanceView, blocks: int, takers: Iterable[InstanceView]) -> InstanceView | None:
    """Choose who goes on with a request that has so many KV blocks; None where nobody has room.

    Instances that decode come first and those that prefill last, then those on the same machine, then the one with the
    most free blocks.
    """
    with_room = [one for one in takers if one.worker != giver.worker and one.has_room_for(blocks)]
    return min(
        with_room,
        key=lambda one: (_preference(one), one.host != giver.host, -one.free_blocks, one.worker),
        default=None,
    )


def _preference(instance: InstanceView) -> int:
    return 0 if instance.role == "decode" else 2 if instance.role == "prefill" else 1
