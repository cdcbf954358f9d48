"""What a block of a schedule costs besides its bytes, measured by plans that were carried out. Pure."""

from collections.abc import Iterator
from statistics import median

from livescale.services.planner.times import known
from livescale.shared.messages.scaling import ScaleRecord
from livescale.shared.messages.transfers import Plan

FIRST_SECONDS = 0.005  # until it is measured
WEIGHT = 0.3  # of the last plan


class BlockCost:
    """A moving average over plans with schedules: turns, messages, checksums, whatever comes with every block."""

    def __init__(self) -> None:
        self._measured: float | None = None
        self._plans = 0

    @property
    def seconds(self) -> float:
        return FIRST_SECONDS if self._measured is None else self._measured

    @property
    def reason(self) -> str:
        source = (
            f"measured in {self._plans} plan{'s' * (self._plans > 1)}"
            if self._plans
            else "assumed, for nothing was measured yet"
        )
        return f"a block costs {self.seconds * 1000:.3g} ms besides its bytes: {source}"

    def learn(self, record: ScaleRecord) -> None:
        """Of a scale out that went as it was planned, where it is known what links carry."""
        plan = record.plan
        if plan is None or record.state != "done" or any(phase.name == "replanned" for phase in record.phases):
            return
        costs = list(measure(plan, record))
        if costs:
            cost = max(0.0, median(costs))
            self._measured = cost if self._measured is None else WEIGHT * cost + (1 - WEIGHT) * self._measured
            self._plans += 1


def measure(plan: Plan, record: ScaleRecord) -> Iterator[float]:
    """By each target with a schedule: how much longer than predicted it took from its first to its last step, a step.

    What comes once, before the first or after the last block, has no part in it.
    """
    for target, times in plan.predicted_blocks.items():
        steps = {
            block: step
            for flow in plan.flows
            if flow.receiver == target
            for block, step in zip(flow.blocks, flow.steps, strict=False)
        }
        predicted, arrived = known(times), known(record.arrived.get(target, []))
        if not steps or not steps.keys() <= arrived.keys() & predicted.keys():
            continue
        order = sorted(steps, key=lambda block: (steps[block], predicted[block]))
        first, last = order[0], order[-1]
        count = steps[last] - steps[first]
        if count:
            longer = (arrived[last] - arrived[first]) - (predicted[last] - predicted[first])
            yield plan.block_seconds + longer / count
