"""The execution pipelines of a scale (LambdaScale 4.3): which there are to be, and what becomes of them. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from livescale.services.planner.delivery import Delivery
from livescale.services.planner.pipeline import ExecutionPipeline
from livescale.services.planner.plans.pipelines import pipeline_ready, team_pipelines
from livescale.services.planner.plans.plan import TransferPlan
from livescale.services.planner.scales import Command
from livescale.shared.messages.membership import WorkerReport
from livescale.shared.messages.pipelines import Pipeline
from livescale.shared.messages.scaling import PipelineRecord
from livescale.shared.messages.transfers import PlannedPipeline


class ExecutionPipelines:
    """All of a plan's. What its methods return is to be commanded."""

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
        """Whether its instance is not to serve by itself yet."""
        first = self._delivery.orders.instance_of(worker).ranks[0]
        return any(one.holds(first) for one in self._pipelines.values())

    def on_report(self, report: WorkerReport, now: float) -> list[Command]:
        """Says how many KV blocks a target has, once it knows, and what it is part of."""
        if report.kv_blocks:
            self._kv_blocks[report.id] = report.kv_blocks
        return [command for one in self._pipelines.values() for command in one.on_report(report, now)]

    def look(self, now: float) -> list[Command]:
        """After every event: what follows."""
        return [command for one in self._pipelines.values() for command in one.look(self._kv_blocks, now)]

    def acknowledged(self, worker: str, message: Pipeline, now: float) -> None:
        """It takes its part."""
        self._pipelines[message.id].acknowledged(worker, now)

    def refused(self, worker: str, message: Pipeline, error: str, now: float) -> list[Command]:
        """It does not take its part; its parameters go on arriving."""
        return self._pipelines[message.id].end(f"{worker} did not take its part: {error}", now)

    def first_token(self, worker: str, at: float) -> None:
        for one in self._pipelines.values():
            one.first_token(worker, at)

    def take_over(self, records: Sequence[PipelineRecord], now: float) -> None:
        """An earlier planner's run on, and no other is formed."""
        known = {record.id: record for record in records}
        for id, one in self._pipelines.items():
            one.forget(known.get(id), "the planner was restarted", now)

    def broken_invariants(self) -> Iterator[str]:
        for one in self._pipelines.values():
            yield from one.broken_invariants()


def foresee_pipelines(
    plans: Sequence[TransferPlan],
    teams: Sequence[Sequence[str]],
    ready: Mapping[str, Mapping[int, float]],
    *,
    tied: bool,
) -> list[PlannedPipeline]:
    """Those of at least two instances, which are the `teams`; `ready` as predicted, by target and block, or empty."""
    return [
        PlannedPipeline(members=list(nodes), predicted=pipeline_ready(nodes, ready, tied=tied) if ready else None)
        for nodes in team_pipelines([plan.pipelines for plan in plans], teams)
    ]
