"""LambdaScale's execution pipelines: nodes that together have a model before each of them does (4.2, 4.3). Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence


def plan_pipelines(groups: Iterable[Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """Algorithm 2: one node of each sub-group, while two have any left; the rest of one makes a pipeline by itself.

    Nodes are in the order of sub-groups, which is the order of stages: each sub-group gets another part first.
    """
    left = [list(group) for group in groups if group]
    while len(left) > 1:
        for _ in range(min(map(len, left))):
            yield tuple(group.pop(0) for group in left)
        left = [group for group in left if group]
    yield from (tuple(group) for group in left)


def plan_replicas(groups: Sequence[Sequence[Sequence[str]]]) -> Iterator[tuple[str, ...]]:
    """Nodes by sub-group and domain: those that take part in the schedule make pipelines with each other, and so do
    those that get it next in each domain, as in Fig. 6(c)."""
    for replica in range(max((len(domain) for group in groups for domain in group), default=0)):
        yield from plan_pipelines([domain[replica] for domain in group if replica < len(domain)] for group in groups)


def team_pipelines(plans: Sequence[Iterable[Sequence[str]]], teams: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Pipelines of at least two instances, each named by its first worker, as in Fig. 6(b): those that the plans of all
    ranks have. `plans`: by rank, the pipelines of its workers; `teams`: the workers of each instance, by rank."""
    leader = {worker: team[0] for team in teams for worker in team}
    named = [[tuple(leader[worker] for worker in nodes) for nodes in plan] for plan in plans]
    agreed = frozenset.intersection(*(frozenset(map(frozenset, plan)) for plan in named))
    return [nodes for nodes in named[0] if len(nodes) > 1 and frozenset(nodes) in agreed]


def pipeline_ready(pipeline: Iterable[str], ready: Mapping[str, Mapping[int, float]], *, tied: bool = False) -> float:
    """When the nodes have every block between them; `ready` by node and block.

    `tied`: the head is of use to who has the embedding, too.
    """
    nodes = list(pipeline)
    head = max((block for node in nodes for block in ready[node]), default=0)
    first: dict[int, float] = {}
    for node in nodes:
        for block, time in ready[node].items():
            usable = max(time, ready[node].get(0, 0.0)) if tied and block == head else time
            first[block] = min(usable, first.get(block, usable))
    return max(first.values(), default=0.0)
