"""An execution pipeline as a state machine: it is formed as soon as its members have the model between them, and ends
once each of them has all of it (LambdaScale 4.3, 4.4). Pure.

While it runs its members are not told to serve by themselves. When all are whole the leader is, and after it the
others, who fetch their shares of its requests from it. Once the first is whole, the others have PATIENCE_SECONDS, or
half the time for which it has run if that is longer. Then it ends all the same: as above if its leader is whole,
otherwise by PipelineOver, on which the leader gives its requests back. So it ends where a member is lost, leaves it, or
does not take its part.

Members are instances, named by their first worker, which has the others run what it runs: one of several workers has a
block once all of them have it (Fig. 6(b)), and is lost with the first of them.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import assert_never

from msgspec.structs import replace

from livescale.services.planner.delivery import Delivery
from livescale.services.planner.scales import Command
from livescale.services.planner.stages import Span, broken_cover, choose_stages
from livescale.services.planner.targets import UNDER_WAY, TargetState
from livescale.shared.messages.membership import WorkerReport
from livescale.shared.messages.pipelines import PipelineOver
from livescale.shared.messages.scaling import PipelineRecord
from livescale.shared.policy.state_machine import StateMachine

PATIENCE_SECONDS = 2.0
PATIENCE_SHARE = 0.5


class State(StrEnum):
    """In this order."""

    WAITING = "waiting"  # for blocks, or to hear how many KV blocks its members have
    FORMING = "forming"  # all but the leader are told
    STARTING = "starting"  # the leader is told
    RUNNING = "running"
    SWITCHING = "switching"  # the leader is told to serve by itself
    OVER = "over"


MOVES = StateMachine(
    "an execution pipeline",
    {
        State.WAITING: frozenset({State.FORMING, State.OVER}),
        State.FORMING: frozenset({State.STARTING, State.OVER}),
        State.STARTING: frozenset({State.RUNNING, State.OVER}),
        State.RUNNING: frozenset({State.SWITCHING, State.OVER}),
        State.SWITCHING: frozenset({State.OVER}),
        State.OVER: frozenset(),
    },
)


class ExecutionPipeline:
    """Of these targets of a delivery. What its methods return is to be commanded."""

    def __init__(self, id: str, members: list[str], delivery: Delivery) -> None:
        self.state = State.WAITING
        self.record = PipelineRecord(id=id)
        self._members = members
        self._delivery = delivery
        self._stages: list[Span] = []
        self._kv_blocks = 0
        self._answered: set[str] = set()  # who takes its part
        self._seen: set[str] = set()  # who said so in a report
        self._whole_since: float | None = None  # the first of them

    @property
    def workers(self) -> list[str]:
        """Those that have stages, the leader first."""
        return list(dict.fromkeys(span.worker for span in self._stages))

    def holds(self, worker: str) -> bool:
        """Whether it is not to serve by itself yet."""
        match self.state:
            case State.FORMING | State.STARTING | State.RUNNING:
                return worker in self.workers
            case State.SWITCHING:
                return worker in self.workers[1:]
            case State.WAITING | State.OVER:
                return False
            case _:
                assert_never(self.state)

    def look(self, kv_blocks: Mapping[str, int], now: float) -> list[Command]:
        """After every event: what follows. `kv_blocks` by worker, of those that have said it."""
        match self.state:
            case State.WAITING:
                return self._form(kv_blocks, now)
            case State.FORMING | State.STARTING | State.RUNNING | State.SWITCHING:
                return self._go_on(now)
            case State.OVER:
                return []
            case _:
                assert_never(self.state)

    def acknowledged(self, worker: str, now: float) -> None:
        """It takes its part."""
        self._answered.add(worker)
        if self.state is State.STARTING and worker == self.workers[0]:
            self._move(State.RUNNING)
            self.record = replace(self.record, running_at=now)

    def on_report(self, report: WorkerReport, now: float) -> list[Command]:
        """It broke where one says no more that it is part of it: workers hear sooner than anybody of a lost channel."""
        if report.pipeline == self.record.id:
            self._seen.add(report.id)
            if report.kv_way:
                self.record = replace(self.record, kv_ways={**self.record.kv_ways, report.id: report.kv_way})
        elif report.id in self._seen and self.state in (State.FORMING, State.STARTING, State.RUNNING):
            return self.end(f"{report.id} left it", now)
        return []

    def first_token(self, worker: str, at: float) -> None:
        """The first that this instance made."""
        leads = self.state in (State.STARTING, State.RUNNING, State.SWITCHING) and worker == self.workers[0]
        if leads and self.record.first_token_at is None:
            self.record = replace(self.record, first_token_at=at)

    def end(self, reason: str, now: float) -> list[Command]:
        """Its leader gives its requests back; who is whole serves by itself."""
        if self.state is State.OVER:
            return []
        self._over(reason, now)
        left = [worker for worker in self.workers if self._is(worker, *UNDER_WAY)]
        over = PipelineOver(pipeline=self.record.id, reason=reason)
        return [*(Command(worker, over, reason) for worker in left), *self._serve(left)]

    def forget(self, record: PipelineRecord | None, reason: str, now: float) -> None:
        """An earlier planner formed it, or would have: what runs goes on until one of its members serves."""
        self._over(reason, now)
        if record is not None:
            self.record = record if record.ended_at is not None else replace(record, reason=reason, ended_at=now)

    def _form(self, kv_blocks: Mapping[str, int], now: float) -> list[Command]:
        delivery, tied = self._delivery, self._delivery.orders.manifest.config.tie_word_embeddings
        left = [one for one in self._members if not self._is(one, TargetState.FAILED)]
        here = {one: delivery.here(one) for one in left}
        ended = TargetState.WHOLE, TargetState.SERVING
        whole = [one for one in left if len(here[one]) == delivery.blocks or self._is(one, *ended)]
        if whole or len(left) < 2:
            return self.end(f"{whole[0]} is whole already" if whole else "nobody is left to make it with", now)
        stages = choose_stages(here, delivery.blocks, tied=tied)
        if not stages or not all(kv_blocks.get(span.worker) for span in stages):
            return []
        self._stages = stages
        self._kv_blocks = min(kv_blocks[worker] for worker in self.workers)
        ready_at = delivery.between_at(self.workers, tied=tied) or now
        self.record = replace(self.record, stages=list(map(str, stages)), ready_at=ready_at)
        self._move(State.FORMING)
        return [self._tell(worker) for worker in self.workers[1:]]

    def _go_on(self, now: float) -> list[Command]:
        leader, *others = self.workers
        if self._is(leader, TargetState.SERVING):
            self._over(self.record.reason or "each of them is whole", now)
            return self._serve(others)
        lost = [worker for worker in self.workers if self._is(worker, TargetState.FAILED)]
        if self.state is State.SWITCHING:
            return self.end(f"lost {leader}", now) if leader in lost else []
        if lost:
            return self.end(f"lost {', '.join(lost)}", now)
        if reason := self._why_end(now):
            return (
                self._switch(reason, now)
                if self.state is State.RUNNING and self._is_whole(leader)
                else self.end(reason, now)
            )
        if self.state is State.FORMING and self._answered.issuperset(others):
            self._move(State.STARTING)
            return [self._tell(leader)]
        return []

    def _why_end(self, now: float) -> str:
        """Why its members should serve by themselves; nothing where they should not yet."""
        late = [worker for worker in self.workers if not self._is_whole(worker)]
        if not late:
            return "each of them is whole"
        if len(late) == len(self.workers):
            return ""
        self._whole_since = now if self._whole_since is None else self._whole_since
        ran = 0.0 if self.record.running_at is None else self._whole_since - self.record.running_at
        waited = now - self._whole_since
        return f"{', '.join(late)} kept others waiting" if waited >= max(PATIENCE_SECONDS, PATIENCE_SHARE * ran) else ""

    def _switch(self, reason: str, now: float) -> list[Command]:
        self._move(State.SWITCHING)
        self.record = replace(self.record, reason=reason, switching_at=now)
        return self._serve(self.workers[:1])

    def _over(self, reason: str, now: float) -> None:
        self._move(State.OVER)
        self.record = replace(self.record, reason=reason, ended_at=now)

    def _serve(self, workers: list[str]) -> list[Command]:
        whole = [worker for worker in workers if self._is_whole(worker)]
        return [command for worker in whole for command in self._delivery.serves(worker)]

    def _tell(self, worker: str) -> Command:
        return self._delivery.orders.pipeline(self.record.id, self._stages, self._kv_blocks, worker)

    def _is(self, worker: str, *states: TargetState) -> bool:
        return self._delivery.is_in(worker, *states)

    def _is_whole(self, worker: str) -> bool:
        return self._is(worker, TargetState.WHOLE)

    def _move(self, state: State) -> None:
        self.state = MOVES.advance(self.state, state)

    def broken_invariants(self) -> list[str]:
        """Every block is run by one of its stages, which has it."""
        if not self._stages:
            return []
        held = {worker: self._delivery.here(worker) for worker in self.workers}
        broken = broken_cover(self._stages, held, self._delivery.blocks)
        return [f"{self.record.id}: {one}" for one in broken]
