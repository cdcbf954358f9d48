"""When blocks should be ready at the targets of a scale, when they were, and what a scheduled block costs. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from statistics import median

from msgspec.structs import replace

from livescale.services.planner.plans.execution_pipelines import pipeline_ready
from livescale.shared.messages.scaling import ScaleRecord
from livescale.shared.messages.transfers import BlockReady, Plan

# Over all targets, of which each block's time is told: the bus takes messages of at most 1 MiB.
MOST_BLOCKS = 2000

BlockTimes = dict[str, dict[int, float]]  # seconds, by target and block
MessageTimes = dict[str, list[float | None]]  # the same as messages have it: by target, in the order of blocks
FIRST_SECONDS = 0.005  # what a block costs until that is measured
WEIGHT = 0.3  # of the last plan in the average


def keeps_block_times(targets: int, blocks: int) -> bool:
    """Say whether a plan of this size keeps the times of single blocks, or only those of whole targets."""
    return targets * blocks <= MOST_BLOCKS


class BlockArrivals:
    """Which blocks the targets of a plan have, and when each arrived.

    Times are kept only if the plan is small enough (`keeps_block_times`).
    """

    def __init__(self, targets: int, blocks: int) -> None:
        self._arrived: BlockTimes = {}
        self._here: dict[str, set[int]] = {}
        self._blocks = blocks
        self._are_told = keeps_block_times(targets, blocks)
        self._begun: float | None = None  # when the first sender was told

    def continue_from(self, record: ScaleRecord) -> None:
        """Take over the times that an earlier planner recorded."""
        self._begun = next((phase.at for phase in record.phases if phase.name == "commanded"), None)
        self._arrived = {worker: known_times(times) for worker, times in record.arrived.items()}

    def begin(self, now: float) -> None:
        """Note when the first sender was told to send. Predicted times count from then."""
        if self._begun is None:
            self._begun = now

    def arrive(self, block: BlockReady) -> None:
        """Note that a block is ready at a worker, and when."""
        self.see(block.worker, [block.index])
        if self._are_told:
            self._arrived.setdefault(block.worker, {}).setdefault(block.index, block.at)

    @property
    def arrived(self) -> MessageTimes:
        """When each block was ready, for the targets that have any."""
        return message_times(self._arrived, self._blocks)

    def see(self, worker: str, ready: Iterable[int]) -> None:
        """Note which blocks a worker reports to have, since events of single blocks may get lost."""
        self._here.setdefault(worker, set()).update(ready)

    def here(self, *workers: str) -> AbstractSet[int]:
        """Return the blocks that every one of these workers has."""
        return frozenset.intersection(*(frozenset(self._here.get(worker, ())) for worker in workers))

    def between_at(self, teams: Sequence[Sequence[str]], *, tied: bool) -> float | None:
        """Return when these teams had every block between them, as an execution pipeline needs them.

        A team, the workers of one instance, has a block once all of them have it. Returns None if the times are not
        known.
        """
        arrived = {team[0]: self._arrived_at(team) for team in teams}
        known = frozenset[int]().union(*arrived.values())
        return pipeline_ready(arrived, arrived, tied=tied) if len(known) == self._blocks else None

    def _arrived_at(self, workers: Sequence[str]) -> dict[int, float]:
        """When each block was at the last of these."""
        first, *others = (self._arrived.get(worker, {}) for worker in workers)
        return {block: max(at[block] for at in (first, *others)) for block in set(first).intersection(*others)}

    def ready_at(self, worker: str, blocks: Sequence[int]) -> float | None:
        """Return when the last of these blocks arrived at a worker; None unless all their times are known."""
        arrived = self._arrived.get(worker, {})
        return max(arrived[block] for block in blocks) if arrived.keys() >= set(blocks) else None

    def missing(self, worker: str) -> list[int]:
        """Return the indices of the blocks that a worker lacks, in order."""
        here = self.here(worker)
        return [index for index in range(self._blocks) if index not in here]

    def renew(self, plan: Plan, ready: Mapping[str, Mapping[int, float]], now: float) -> Plan:
        """Return the plan with new predictions for the missing blocks, which should be `ready` so many seconds from
        now.

        Blocks that have arrived keep the times that were predicted for them.
        """
        passed = 0.0 if self._begun is None else max(0.0, now - self._begun)
        coming = {worker: {block: passed + at for block, at in times.items()} for worker, times in ready.items()}
        whole = {worker: max(times.values()) for worker, times in coming.items() if times}
        blocks = {
            worker: known_times(times) | coming.get(worker, {}) for worker, times in plan.predicted_blocks.items()
        }
        return replace(plan, predicted=plan.predicted | whole, predicted_blocks=message_times(blocks, self._blocks))


def message_times(times: Mapping[str, Mapping[int, float]], blocks: int) -> MessageTimes:
    """Return block times as messages have them: for each target a list over all `blocks`, with None for unknown
    times."""
    return {worker: [own.get(index) for index in range(blocks)] for worker, own in times.items()}


def known_times(times: Sequence[float | None]) -> dict[int, float]:
    """Return the times that are known of such a list, by block."""
    return {index: at for index, at in enumerate(times) if at is not None}


class BlockCost:
    """What a scheduled block costs besides its bytes: turns, messages, checksums, whatever comes with every block.

    It is a moving average over the scheduled plans that have been carried out.
    """

    def __init__(self) -> None:
        self._measured: float | None = None
        self._plans = 0

    @property
    def seconds(self) -> float:
        """The measured cost, or an assumed one while nothing has been measured."""
        return FIRST_SECONDS if self._measured is None else self._measured

    @property
    def reason(self) -> str:
        """A sentence for the plan's reasons: the cost, and where it comes from."""
        source = (
            f"measured in {self._plans} plan{'s' * (self._plans > 1)}"
            if self._plans
            else "assumed, for nothing was measured yet"
        )
        return f"a block costs {self.seconds * 1000:.3g} ms besides its bytes: {source}"

    def learn(self, record: ScaleRecord) -> None:
        """Measure a scale out that was done as planned. Others say nothing, nor do plans without predicted times."""
        plan = record.plan
        if plan is None or record.state != "done" or any(phase.name == "replanned" for phase in record.phases):
            return
        costs = list(measure_block_cost(plan, record))
        if costs:
            cost = max(0.0, median(costs))
            self._measured = cost if self._measured is None else WEIGHT * cost + (1 - WEIGHT) * self._measured
            self._plans += 1


def measure_block_cost(plan: Plan, record: ScaleRecord) -> Iterator[float]:
    """Yield a cost in seconds for each target with a schedule: by how much a step took longer than predicted.

    Only the time from a target's first to its last step counts, as what precedes and follows them comes once a plan.
    """
    for target, times in plan.predicted_blocks.items():
        steps = {
            block: step
            for flow in plan.flows
            if flow.receiver == target
            for block, step in zip(flow.blocks, flow.steps, strict=False)
        }
        predicted, arrived = known_times(times), known_times(record.arrived.get(target, []))
        if not steps or not steps.keys() <= arrived.keys() & predicted.keys():
            continue
        order = sorted(steps, key=lambda block: (steps[block], predicted[block]))
        first, last = order[0], order[-1]
        count = steps[last] - steps[first]
        if count:
            longer = (arrived[last] - arrived[first]) - (predicted[last] - predicted[first])
            yield plan.block_seconds + longer / count
