"""Warm starts (LambdaScale 5): hosts that load their own copies begin with different parts of them. Pure."""

from collections.abc import Sequence

from msgspec import structs

from livescale.services.planner.plans.block_groups import transfer_order
from livescale.services.planner.plans.groups import Group
from livescale.services.planner.plans.plan import Flow


def stagger(groups: Sequence[Group], flows: Sequence[Flow]) -> tuple[list[Flow], list[list[list[str]]]]:
    """The flows in k-way circular orders, and the nodes that begin with each part, by domain: between them they have
    the whole model long before each has. Who gets it from another target keeps to that one's order."""
    home = {node.id: number for number, group in enumerate(groups) for node in group.nodes}
    begins_with: list[list[list[str]]] = []
    way_of: dict[int, int] = {}
    for flow in flows:  # in the order in which groups were planned: a feeder comes before those that it feeds
        group, fed_by = home[flow.receiver], home.get(flow.sender)
        if group not in way_of:
            if fed_by is None:
                begins_with.append([])
            way_of[group] = len(begins_with) - 1 if fed_by is None else way_of[fed_by]
            begins_with[way_of[group]].append([node.id for node in groups[group].nodes])
    orders = [tuple(transfer_order(flow.blocks, len(begins_with), way_of[home[flow.receiver]])) for flow in flows]
    return [structs.replace(flow, blocks=order) for flow, order in zip(flows, orders, strict=True)], begins_with
