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


def pipeline_ready(pipeline: Iterable[str], ready: Mapping[str, Mapping[int, float]]) -> float:
    """When the nodes have every block between them; `ready` by node and block."""
    first: dict[int, float] = {}
    for node in pipeline:
        for block, time in ready[node].items():
            first[block] = min(time, first.get(block, time))
    return max(first.values(), default=0.0)
