"""The targets of a scale out: how far each one is, along which flows it receives, which of them lost theirs, and which
blocks are there, when they should be and when they were. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum

from msgspec.structs import replace

from livescale.services.planner.plans.execution_pipelines import pipeline_ready
from livescale.shared.messages.scaling import ScaleRecord
from livescale.shared.messages.transfers import BlockReady, Flow, Plan, PlannedInstance
from livescale.shared.policy.invariants import StateMachine

REPLAN_SECONDS = 0.5  # between two new plans; the first one is made at once
# Over all targets, of which each block's time is told: the bus takes messages of at most 1 MiB.
MOST_BLOCKS = 2000

BlockTimes = dict[str, dict[int, float]]  # seconds, by target and block
MessageTimes = dict[str, list[float | None]]  # the same as messages have it: by target, in the order of blocks


class TargetState(StrEnum):
    """The states of a target. They are in the order in which a target gets on, which `ScaleTargets.lowest` uses."""

    STRANDED = "stranded"  # its upstream was lost: it keeps what arrived and waits for another
    COMMANDED = "commanded"
    ACCEPTED = "accepted"
    WHOLE = "whole"
    SERVING = "serving"
    FAILED = "failed"


MOVES = StateMachine(
    "a target",
    {
        TargetState.STRANDED: frozenset({TargetState.COMMANDED, TargetState.WHOLE, TargetState.FAILED}),
        TargetState.COMMANDED: frozenset({TargetState.ACCEPTED, TargetState.STRANDED, TargetState.FAILED}),
        TargetState.ACCEPTED: frozenset({TargetState.WHOLE, TargetState.STRANDED, TargetState.FAILED}),
        TargetState.WHOLE: frozenset({TargetState.SERVING, TargetState.FAILED}),
        TargetState.SERVING: frozenset(),
        TargetState.FAILED: frozenset(),
    },
)

RECEIVING = (TargetState.COMMANDED, TargetState.ACCEPTED)
UNDER_WAY = (TargetState.STRANDED, *RECEIVING, TargetState.WHOLE)
ENDED = (TargetState.SERVING, TargetState.FAILED)


class ScaleTargets:
    """The state of every target by worker id, in the order of the plan. Each begins as `COMMANDED`."""

    def __init__(self, workers: list[str]) -> None:
        self._states = dict.fromkeys(workers, TargetState.COMMANDED)

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, worker: str) -> bool:
        return worker in self._states

    def is_in(self, worker: str, *states: TargetState) -> bool:
        """Say whether this worker is a target in one of these states."""
        return self._states.get(worker) in states

    def all_in(self, *states: TargetState) -> list[str]:
        """Return the targets that are in one of these states."""
        return [worker for worker, state in self._states.items() if state in states]

    def lowest(self, instance: PlannedInstance) -> TargetState:
        """Return the state of an instance: that of its least advanced rank, but `FAILED` if any rank has failed."""
        states = {self._states[worker] for worker in instance.ranks}
        return TargetState.FAILED if TargetState.FAILED in states else min(states, key=list(TargetState).index)

    def move(self, worker: str, state: TargetState) -> None:
        """Change a target's state. Raises ValueError for a change that `MOVES` does not allow."""
        self._states[worker] = MOVES.advance(self._states[worker], state)


class StrandedTargets:
    """The targets that receive nothing, since their sender was lost, and when to look for another way.

    It remembers why each is stranded, which senders to avoid, and why the last attempt to replan found no plan.
    """

    def __init__(self, now: float) -> None:
        self._why: dict[str, str] = {}  # by target
        self._due = now
        self._no_plan = ""
        self.avoid: set[str] = set()

    def __iter__(self) -> Iterator[str]:
        return iter(self._why)

    def __len__(self) -> int:
        return len(self._why)

    def __contains__(self, worker: object) -> bool:
        return worker in self._why

    def add(self, worker: str, why: str, sender: str) -> None:
        """Note that a target is stranded and why. A new plan avoids `sender`."""
        self._why[worker] = why
        self.avoid.add(sender)

    def forget(self, worker: str) -> str:
        """Remove a target that is stranded no more. Returns why it was, or an empty string if it was not."""
        return self._why.pop(worker, "")

    def is_due(self, now: float) -> bool:
        """Say whether a target is stranded and it is time to look for another plan."""
        return bool(self._why) and now >= self._due

    def looked(self, now: float, no_plan: str = "") -> None:
        """Note that a new plan was looked for; `no_plan` says why there is none. The next attempt is due a while
        later."""
        self._due = now + REPLAN_SECONDS
        self._no_plan = no_plan or self._no_plan

    @property
    def problem(self) -> str:
        """Why the stranded still wait, to be put at the end of a sentence, or an empty string."""
        return f"; {self._no_plan}" if self._why and self._no_plan else ""


class FlowsUnderWay:
    """The flows along which a target still receives, in the order in which they were planned."""

    def __init__(self, flows: Iterable[Flow]) -> None:
        self._flows = list(flows)
        self._sent: set[int] = set()  # tickets of the flows whose sender was told

    def __iter__(self) -> Iterator[Flow]:
        return iter(self._flows)

    def add(self, flows: Iterable[Flow]) -> None:
        self._flows += flows

    def into(self, worker: str) -> list[Flow]:
        """Return the flows that this worker receives."""
        return [flow for flow in self._flows if flow.receiver == worker]

    def out_of(self, node: str) -> list[Flow]:
        """Return the flows that this node sends, in the order of the plan."""
        return [flow for flow in self._flows if flow.sender == node]

    def drop(self, receivers: Iterable[str]) -> None:
        """Remove all flows to these receivers, as they receive nothing more."""
        gone = set(receivers)
        self._flows = [flow for flow in self._flows if flow.receiver not in gone]

    def behind(self, workers: Collection[str]) -> set[str]:
        """Return all that receive from one of these workers, directly or through others."""
        behind, ahead = set[str](), set(workers)
        while ahead:
            ahead = {flow.receiver for flow in self._flows if flow.sender in ahead} - behind
            behind |= ahead
        return behind

    def take_unsent(self, ready: AbstractSet[str], awaited: AbstractSet[str]) -> Iterator[tuple[str, list[Flow]]]:
        """Yield each sender that has yet to be told, with its flows to receivers that are `ready`.

        A sender is left out while one of its receivers is `awaited`: it is told once, of all of them. What was yielded
        counts as told.
        """
        unsent: dict[str, list[Flow]] = {}
        for flow in self._flows:
            if flow.ticket not in self._sent and (flow.receiver in ready or flow.receiver in awaited):
                unsent.setdefault(flow.sender, []).append(flow)
        for sender, flows in unsent.items():
            if not any(flow.receiver in awaited for flow in flows):
                self._sent.update(flow.ticket for flow in flows)
                yield sender, flows


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
