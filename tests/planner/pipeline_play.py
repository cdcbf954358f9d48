"""A scale out whose targets make an execution pipeline, played event by event."""

from collections.abc import Iterable

from livescale.services.planner.running_scale import NodeCommand
from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.messages.scaling import PipelineRecord
from livescale.shared.messages.transfers import Load
from tests.control.fakes import BLOCKS
from tests.planner.samples import block_ready, loading, names, scale_out, transfer

KV_BLOCKS = {"a": 30, "b": 20, "c": 40}


FORMED_AT = 13.0


class Played:
    """A scale to `a`, `b` and `c`, which are one pipeline. All commands are in `pending` until they are answered."""

    def __init__(self, targets: str = "abc") -> None:
        self.scale = scale_out(list(targets), pipelines=[list(targets)])
        self.pending: list[NodeCommand] = []
        self.take(self.scale.start(10.5), 10.5)
        self.answer(10.5, Load)
        for worker in targets:
            self.take(self.scale.on_report(loading(worker, 0, kv_blocks=KV_BLOCKS[worker]), 11.0), 11.0)
        self.pending.clear()  # SENDs

    def take(self, commands: list[NodeCommand], now: float) -> None:
        self.scale.check_invariants()
        self.pending += [*commands, *self.scale.follow_up(now)]
        assert self.scale.follow_up(now) == [], "what follows is said once"

    def answer(self, now: float, *kinds: type) -> list[tuple[str, str]]:
        """All that is pending, or what is of these kinds; what it was."""
        answered = [one for one in self.pending if not kinds or isinstance(one.message, kinds)]
        self.pending = [one for one in self.pending if one not in answered]
        for command in answered:
            self.take(self.scale.acknowledged(command, now), now)
        return names(answered)

    def refuse(self, now: float) -> None:
        self.take(self.scale.refused(self.pending.pop(0), "no", now), now)

    def arrive(self, worker: str, blocks: Iterable[int], now: float) -> None:
        for index in blocks:
            self.take(self.scale.on_block(block_ready(worker, index, now), now), now)

    def whole(self, worker: str, now: float) -> None:
        self.arrive(worker, range(BLOCKS), now)
        self.take(self.scale.on_transfer(transfer(worker, "whole", now), now), now)

    def die(self, worker: str, now: float) -> None:
        change = LeaseChanged(service="worker", id=worker, epoch=5, state="dead", reason="silent", at=now)
        self.take(self.scale.on_lease(change, now), now)

    def tick(self, now: float) -> None:
        self.take(self.scale.tick(now), now)

    @property
    def said(self) -> list[tuple[str, str]]:
        return names(self.pending)

    @property
    def record(self) -> PipelineRecord:
        [record] = self.scale.record().pipelines
        return record


def ready() -> Played:
    """A scale in which `b` has the first half and `a` the second: the pipeline is being formed."""
    played = Played()
    played.arrive("b", [0, 1], FORMED_AT - 1)
    played.arrive("a", [2, 3], FORMED_AT)
    return played


def running() -> Played:
    played = ready()
    played.answer(FORMED_AT + 0.1)
    played.answer(FORMED_AT + 0.2)
    return played
