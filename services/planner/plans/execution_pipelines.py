"""Execution pipelines: nodes that together have a model before each of them does (LambdaScale 4.2, 4.3). Pure.

Plans say which nodes make one. Stages say which of its nodes runs which blocks.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple


def plan_pipelines(groups: Iterable[Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """Make pipelines of one node of each sub-group, while two have any left (LambdaScale 4.3, Algorithm 2).

    The rest of one sub-group makes a pipeline by itself. Nodes are in the order of sub-groups, which is the order of
    stages, as each sub-group gets another part first.
    """
    left = [list(group) for group in groups if group]
    while len(left) > 1:
        for _ in range(min(map(len, left))):
            yield tuple(group.pop(0) for group in left)
        left = [group for group in left if group]
    yield from (tuple(group) for group in left)


def plan_replicas(groups: Sequence[Sequence[Sequence[str]]]) -> Iterator[tuple[str, ...]]:
    """Make pipelines of nodes by sub-group and domain (LambdaScale 4.3, Fig. 6(c)).

    Those that take part in the schedule make pipelines with each other, and so do those that come next in each domain.
    """
    for replica in range(max((len(domain) for group in groups for domain in group), default=0)):
        yield from plan_pipelines([domain[replica] for domain in group if replica < len(domain)] for group in groups)


def team_pipelines(plans: Sequence[Iterable[Sequence[str]]], teams: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the pipelines of at least two instances that the plans of all ranks agree on (LambdaScale 4.3, Fig. 6(b)).

    Each instance is named by its first worker. `plans` has the pipelines of each rank's workers, and `teams` the
    workers of each instance by rank.
    """
    leader = {worker: team[0] for team in teams for worker in team}
    named = [[tuple(leader[worker] for worker in nodes) for nodes in plan] for plan in plans]
    agreed = frozenset.intersection(*(frozenset(map(frozenset, plan)) for plan in named))
    return [nodes for nodes in named[0] if len(nodes) > 1 and frozenset(nodes) in agreed]


def pipeline_ready(pipeline: Iterable[str], ready: Mapping[str, Mapping[int, float]], *, tied: bool = False) -> float:
    """Return when the nodes have every block between them; `ready` has the times by node and block.

    `tied`: the head can only be run by a node that has the embedding, too.
    """
    nodes = list(pipeline)
    head = max((block for node in nodes for block in ready[node]), default=0)
    first: dict[int, float] = {}
    for node in nodes:
        for block, time in ready[node].items():
            usable = max(time, ready[node].get(0, 0.0)) if tied and block == head else time
            first[block] = min(usable, first.get(block, usable))
    return max(first.values(), default=0.0)


class StageSpan(NamedTuple):
    """The blocks `first` to `stop` - 1, which a worker runs."""

    worker: str
    first: int
    stop: int

    def __str__(self) -> str:
        return f"{self.worker} {self.first}-{self.stop - 1}"


def choose_stages(held: Mapping[str, AbstractSet[int]], blocks: int, *, tied: bool = False) -> list[StageSpan]:
    """Assign all blocks in order, with as few changes of worker as possible (LambdaScale 4.3).

    From each block on, it is the worker that holds most in a row; of equals the one with the least to do so far, then
    the first by id. `tied`: the head needs the embedding, too. Returns nothing where a block is missing.
    """
    runnable = {worker: without_head(own, blocks) if tied else own for worker, own in held.items()}
    stages: list[StageSpan] = []
    while (first := stages[-1].stop if stages else 0) < blocks:
        stops = {worker: end_of_run(own, first) for worker, own in runnable.items()}
        worker = min(stops, key=lambda id: (-stops[id], assigned_blocks(stages, id), id), default="")
        if stops.get(worker, first) == first:
            return []
        stages.append(StageSpan(worker, first, stops[worker]))
    return stages


def without_head(held: AbstractSet[int], blocks: int) -> AbstractSet[int]:
    """Return the blocks that a worker can run where the head multiplies with the embedding."""
    return held if 0 in held else held - {blocks - 1}


def end_of_run(held: AbstractSet[int], first: int) -> int:
    """Return the first block from `first` on that is not held."""
    stop = first
    while stop in held:
        stop += 1
    return stop


def assigned_blocks(stages: list[StageSpan], worker: str) -> int:
    """Return how many blocks these stages assign to a worker."""
    return sum(span.stop - span.first for span in stages if span.worker == worker)


def broken_cover(stages: list[StageSpan], held: Mapping[str, AbstractSet[int]], blocks: int) -> Iterator[str]:
    """Yield what does not hold: each block is run once, by a worker that holds it."""
    run = [(block, span.worker) for span in stages for block in range(span.first, span.stop)]
    if [block for block, _ in run] != list(range(blocks)):
        yield f"blocks {[block for block, _ in run]} are run, of {blocks}"
    yield from (f"{worker} runs block {block} that it lacks" for block, worker in run if block not in held[worker])
