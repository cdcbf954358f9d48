"""Which worker of an execution pipeline runs which blocks (LambdaScale 4.3). Pure."""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple


class Span(NamedTuple):
    """A worker runs the blocks `first` .. `stop` - 1."""

    worker: str
    first: int
    stop: int

    def __str__(self) -> str:
        return f"{self.worker} {self.first}-{self.stop - 1}"


def choose_stages(held: Mapping[str, AbstractSet[int]], blocks: int, *, tied: bool = False) -> list[Span]:
    """All blocks in order, with as few changes of worker as possible: from each block on, whoever holds most in a row.

    Of equals it is who has the least to do so far, then the first by id. `tied`: the head needs the embedding, too.
    Empty where a block is missing.
    """
    runnable = {worker: without_head(own, blocks) if tied else own for worker, own in held.items()}
    stages: list[Span] = []
    while (first := stages[-1].stop if stages else 0) < blocks:
        stops = {worker: end_of_run(own, first) for worker, own in runnable.items()}
        worker = min(stops, key=lambda id: (-stops[id], work(stages, id), id), default="")
        if stops.get(worker, first) == first:
            return []
        stages.append(Span(worker, first, stops[worker]))
    return stages


def without_head(held: AbstractSet[int], blocks: int) -> AbstractSet[int]:
    """What a worker can run where the head multiplies with the embedding."""
    return held if 0 in held else held - {blocks - 1}


def end_of_run(held: AbstractSet[int], first: int) -> int:
    """The first block from `first` on that is not held."""
    stop = first
    while stop in held:
        stop += 1
    return stop


def work(stages: list[Span], worker: str) -> int:
    return sum(span.stop - span.first for span in stages if span.worker == worker)


def broken_cover(stages: list[Span], held: Mapping[str, AbstractSet[int]], blocks: int) -> Iterator[str]:
    """What does not hold: each block is run once, by who holds it."""
    run = [(block, span.worker) for span in stages for block in range(span.first, span.stop)]
    if [block for block, _ in run] != list(range(blocks)):
        yield f"blocks {[block for block, _ in run]} are run, of {blocks}"
    yield from (f"{worker} runs block {block} that it lacks" for block, worker in run if block not in held[worker])
