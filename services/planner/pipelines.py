"""An execution pipeline as a state machine: it is formed as soon as its members have the model between them, and ends
once each of them has all of it (LambdaScale 4.3, 4.4). Pure.

While it runs its members are not told to serve by themselves. When all are whole the leader is, and after it the
others, which fetch their shares of its requests from it. Once the first is whole, the others have
SWITCH_TIMEOUT_SECONDS, or half the time for which it has run if that is longer. Then it ends all the same: as above if
its leader is whole, otherwise by PipelineOver, on which the leader gives its requests back. It ends in the same way
where a member is lost, leaves it, or does not take its part.

Members are instances, named by their first worker, which has the others run what it runs. An instance of several
workers has a block once all of them have it (Fig. 6(b)), and is lost with the first of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import assert_never

from msgspec.structs import replace

from livescale.services.planner.delivery import Delivery
from livescale.services.planner.plans.execution_pipelines import StageSpan, broken_cover, choose_stages
from livescale.services.planner.running_scale import NodeCommand
from livescale.services.planner.targets import UNDER_WAY, TargetState
from livescale.shared.messages.membership import WorkerReport
from livescale.shared.messages.model_parallel import Pipeline, PipelineOver
from livescale.shared.messages.scaling import PipelineRecord
from livescale.shared.policy.invariants import StateMachine

SWITCH_TIMEOUT_SECONDS = 2.0
SWITCH_TIMEOUT_SHARE = 0.5  # of the time for which the pipeline has run


class PipelineState(StrEnum):
    """The states of a pipeline, in the order in which it comes to them."""

    WAITING = "waiting"  # for blocks, or to hear how many KV blocks its members have
    FORMING = "forming"  # all but the leader are told
    STARTING = "starting"  # the leader is told
    RUNNING = "running"
    SWITCHING = "switching"  # the leader is told to serve by itself
    OVER = "over"


MOVES = StateMachine(
    "an execution pipeline",
    {
        PipelineState.WAITING: frozenset({PipelineState.FORMING, PipelineState.OVER}),
        PipelineState.FORMING: frozenset({PipelineState.STARTING, PipelineState.OVER}),
        PipelineState.STARTING: frozenset({PipelineState.RUNNING, PipelineState.OVER}),
        PipelineState.RUNNING: frozenset({PipelineState.SWITCHING, PipelineState.OVER}),
        PipelineState.SWITCHING: frozenset({PipelineState.OVER}),
        PipelineState.OVER: frozenset(),
    },
)


class ExecutionPipeline:
    """One pipeline of some targets of a delivery. Its methods return the commands that follow."""

    def __init__(self, id: str, members: list[str], delivery: Delivery) -> None:
        self.state = PipelineState.WAITING
        self.record = PipelineRecord(id=id)
        self._members = members
        self._delivery = delivery
        self._stages: list[StageSpan] = []
        self._kv_blocks = 0
        self._answered: set[str] = set()  # the members that take their part
        self._seen: set[str] = set()  # those that said so in a report
        self._whole_since: float | None = None  # the first of them

    @property
    def workers(self) -> list[str]:
        """The members that have stages, the leader first."""
        return list(dict.fromkeys(span.worker for span in self._stages))

    def holds(self, worker: str) -> bool:
        """Say whether a worker must not serve by itself yet."""
        match self.state:
            case PipelineState.FORMING | PipelineState.STARTING | PipelineState.RUNNING:
                return worker in self.workers
            case PipelineState.SWITCHING:
                return worker in self.workers[1:]
            case PipelineState.WAITING | PipelineState.OVER:
                return False
            case _:
                assert_never(self.state)

    def look(self, kv_blocks: Mapping[str, int], now: float) -> list[NodeCommand]:
        """Return what is to be commanded now. It is called after every event.

        `kv_blocks`: how many KV blocks each worker has, as far as known.
        """
        match self.state:
            case PipelineState.WAITING:
                return self._form(kv_blocks, now)
            case PipelineState.FORMING | PipelineState.STARTING | PipelineState.RUNNING | PipelineState.SWITCHING:
                return self._go_on(now)
            case PipelineState.OVER:
                return []
            case _:
                assert_never(self.state)

    def acknowledged(self, worker: str, now: float) -> None:
        """Note that a worker takes its part. The pipeline runs once its leader does."""
        self._answered.add(worker)
        if self.state is PipelineState.STARTING and worker == self.workers[0]:
            self._move(PipelineState.RUNNING)
            self.record = replace(self.record, running_at=now)

    def on_report(self, report: WorkerReport, now: float) -> list[NodeCommand]:
        """End the pipeline if a member reports that it has left: workers notice a lost channel first."""
        if report.pipeline == self.record.id:
            self._seen.add(report.id)
            if report.kv_way:
                self.record = replace(self.record, kv_ways={**self.record.kv_ways, report.id: report.kv_way})
        elif report.id in self._seen and self.state in (
            PipelineState.FORMING,
            PipelineState.STARTING,
            PipelineState.RUNNING,
        ):
            return self.end(f"{report.id} left it", now)
        return []

    def first_token(self, worker: str, at: float) -> None:
        """Note when the pipeline made its first token, if this worker leads it."""
        leads = (
            self.state in (PipelineState.STARTING, PipelineState.RUNNING, PipelineState.SWITCHING)
            and worker == self.workers[0]
        )
        if leads and self.record.first_token_at is None:
            self.record = replace(self.record, first_token_at=at)

    def end(self, reason: str, now: float) -> list[NodeCommand]:
        """End the pipeline: its leader gives its requests back, and members that are whole serve."""
        if self.state is PipelineState.OVER:
            return []
        self._over(reason, now)
        left = [worker for worker in self.workers if self._is(worker, *UNDER_WAY)]
        over = PipelineOver(pipeline=self.record.id, reason=reason)
        return [*(NodeCommand(worker, over, reason) for worker in left), *self._serve(left)]

    def forget(self, record: PipelineRecord | None, reason: str, now: float) -> None:
        """Take over from an earlier planner: its pipeline runs on until a member serves, and none is formed anew."""
        self._over(reason, now)
        if record is not None:
            self.record = record if record.ended_at is not None else replace(record, reason=reason, ended_at=now)

    def _form(self, kv_blocks: Mapping[str, int], now: float) -> list[NodeCommand]:
        delivery, tied = self._delivery, self._delivery.orders.manifest.config.tie_word_embeddings
        left = [one for one in self._members if not self._is(one, TargetState.FAILED)]
        here = {one: delivery.here(one) for one in left}
        ended = TargetState.WHOLE, TargetState.SERVING
        whole = [one for one in left if len(here[one]) == delivery.blocks or self._is(one, *ended)]
        if whole or len(left) < 2:
            return self.end(f"{whole[0]} is whole already" if whole else "no other member is left", now)
        stages = choose_stages(here, delivery.blocks, tied=tied)
        if not stages or not all(kv_blocks.get(span.worker) for span in stages):
            return []
        self._stages = stages
        # The member with the fewest KV blocks limits all.
        self._kv_blocks = min(kv_blocks[worker] for worker in self.workers)
        ready_at = delivery.between_at(self.workers, tied=tied) or now
        self.record = replace(self.record, stages=list(map(str, stages)), ready_at=ready_at)
        self._move(PipelineState.FORMING)
        return [self._tell(worker) for worker in self.workers[1:]]

    def _go_on(self, now: float) -> list[NodeCommand]:
        leader, *others = self.workers
        if self._is(leader, TargetState.SERVING):
            self._over(self.record.reason or "each of them is whole", now)
            return self._serve(others)
        lost = [worker for worker in self.workers if self._is(worker, TargetState.FAILED)]
        if self.state is PipelineState.SWITCHING:
            return self.end(f"lost {leader}", now) if leader in lost else []
        if lost:
            return self.end(f"lost {', '.join(lost)}", now)
        if reason := self._why_end(now):
            return (
                self._switch(reason, now)
                if self.state is PipelineState.RUNNING and self._is_whole(leader)
                else self.end(reason, now)
            )
        if self.state is PipelineState.FORMING and self._answered.issuperset(others):
            self._move(PipelineState.STARTING)
            return [self._tell(leader)]
        return []

    def _why_end(self, now: float) -> str:
        """Return why the members should serve by themselves, or an empty string if they should not yet."""
        late = [worker for worker in self.workers if not self._is_whole(worker)]
        if not late:
            return "each of them is whole"
        if len(late) == len(self.workers):
            return ""
        self._whole_since = now if self._whole_since is None else self._whole_since
        ran = 0.0 if self.record.running_at is None else self._whole_since - self.record.running_at
        waited = now - self._whole_since
        return (
            f"{', '.join(late)} kept others waiting"
            if waited >= max(SWITCH_TIMEOUT_SECONDS, SWITCH_TIMEOUT_SHARE * ran)
            else ""
        )

    def _switch(self, reason: str, now: float) -> list[NodeCommand]:
        self._move(PipelineState.SWITCHING)
        self.record = replace(self.record, reason=reason, switching_at=now)
        return self._serve(self.workers[:1])

    def _over(self, reason: str, now: float) -> None:
        self._move(PipelineState.OVER)
        self.record = replace(self.record, reason=reason, ended_at=now)

    def _serve(self, workers: list[str]) -> list[NodeCommand]:
        whole = [worker for worker in workers if self._is_whole(worker)]
        return [command for worker in whole for command in self._delivery.serves(worker)]

    def _tell(self, worker: str) -> NodeCommand:
        return self._delivery.orders.pipeline(self.record.id, self._stages, self._kv_blocks, worker)

    def _is(self, worker: str, *states: TargetState) -> bool:
        return self._delivery.is_in(worker, *states)

    def _is_whole(self, worker: str) -> bool:
        return self._is(worker, TargetState.WHOLE)

    def _move(self, state: PipelineState) -> None:
        self.state = MOVES.advance(self.state, state)

    def broken_invariants(self) -> list[str]:
        """Return what does not hold: each block is run by one of the stages, whose worker has it."""
        if not self._stages:
            return []
        held = {worker: self._delivery.here(worker) for worker in self.workers}
        broken = broken_cover(self._stages, held, self._delivery.blocks)
        return [f"{self.record.id}: {one}" for one in broken]


class ExecutionPipelines:
    """The execution pipelines of a plan. Their methods return the commands that follow."""

    def __init__(self, delivery: Delivery) -> None:
        plan = delivery.orders.plan
        self._pipelines = {
            id: ExecutionPipeline(id, planned.members, delivery)
            for id, planned in ((f"{plan.id}-{number}", one) for number, one in enumerate(plan.pipelines))
        }
        self._delivery = delivery
        self._kv_blocks: dict[str, int] = {}

    @property
    def records(self) -> list[PipelineRecord]:
        return [one.record for one in self._pipelines.values()]

    def holds(self, worker: str) -> bool:
        """Say whether a worker's instance must not serve by itself yet."""
        first = self._delivery.orders.instance_of(worker).ranks[0]
        return any(one.holds(first) for one in self._pipelines.values())

    def on_report(self, report: WorkerReport, now: float) -> list[NodeCommand]:
        """Learn how many KV blocks a target has, and which pipeline it is part of."""
        if report.kv_blocks:
            self._kv_blocks[report.id] = report.kv_blocks
        return [command for one in self._pipelines.values() for command in one.on_report(report, now)]

    def look(self, now: float) -> list[NodeCommand]:
        """Return what is to be commanded now. It is called after every event."""
        return [command for one in self._pipelines.values() for command in one.look(self._kv_blocks, now)]

    def acknowledged(self, worker: str, message: Pipeline, now: float) -> None:
        """Note that a worker takes its part in a pipeline."""
        self._pipelines[message.id].acknowledged(worker, now)

    def refused(self, worker: str, message: Pipeline, error: str, now: float) -> list[NodeCommand]:
        """End a pipeline in which a worker does not take its part. Its parameters go on arriving."""
        return self._pipelines[message.id].end(f"{worker} refused its stages: {error}", now)

    def first_token(self, worker: str, at: float) -> None:
        """Note when an instance made its first token."""
        for one in self._pipelines.values():
            one.first_token(worker, at)

    def take_over(self, records: Sequence[PipelineRecord], now: float) -> None:
        """Let the pipelines of an earlier planner run on. No other is formed."""
        known = {record.id: record for record in records}
        for id, one in self._pipelines.items():
            one.forget(known.get(id), "the planner was restarted", now)

    def broken_invariants(self) -> Iterator[str]:
        """Yield what does not hold in any of the pipelines."""
        for one in self._pipelines.values():
            yield from one.broken_invariants()
