"""What must hold of the batches that are under way. Pure."""

from collections.abc import Iterator, Mapping
from itertools import combinations

from livescale.services.worker.scheduling.allocation import BlockAllocation
from livescale.services.worker.scheduling.batching import Scheduled


def broken_flights(under_way: Mapping[int, list[Scheduled]], allocation: BlockAllocation) -> Iterator[str]:
    """Say what is wrong with the batches `under_way`, by step: a request in two of them, blocks that two write."""
    flights = [(step, one) for step, chosen in under_way.items() for one in dict(chosen)]
    for step, sequence in flights:
        if sequence.held:
            yield f"scheduler: {sequence.request_id} is run in step {step}, and is not to be"
    for (step, one), (later, other) in combinations(flights, 2):
        if one is other:
            yield f"scheduler: {one.request_id} is in steps {step} and {later}"
        was_ended = allocation.get(one.request_id) is not one
        if set(one.blocks) & set(other.blocks) and not (was_ended and step < later):
            yield f"scheduler: {one.request_id} and {other.request_id} write the same blocks"
