"""The binomial pipeline for any number of nodes (LambdaScale 4.2, after Ganesan and Seshadri). Pure.

Node 0 has all blocks. In every step each node sends at most one block and receives at most one. After b + ceil(log2 n)
- 1 steps, the fewest that are possible, every node has all of them.

2^m nodes are the corners of a hypercube. In step t corners exchange along dimension t mod m: the source gives block t
(at the end its last one again), and the others give the highest block that they have. For other numbers of nodes there
are one or two on each corner except the source's. If there are two, the one that has the block of the corner sends it.
The other one receives, and passes to the sender the blocks that only it has. So neither ever has more than one block
that the other lacks, and one more step makes them equal.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

Corner = Sequence[int]


class ScheduledSend(NamedTuple):
    """One block that is sent in a step. Nodes and blocks are numbers."""

    step: int
    sender: int
    receiver: int
    block: int


@lru_cache(maxsize=256)
def schedule(nodes: int, blocks: int) -> tuple[ScheduledSend, ...]:
    """Return everything that is sent, in the order of steps."""
    cube = Hypercube(nodes, blocks)
    steps = blocks + cube.dimensions - 1 if nodes > 1 else 0
    transfers: list[ScheduledSend] = []
    for step in range(steps):
        transfers += cube.carry(cube.exchange(step))
    return (*transfers, *cube.carry(cube.settle(steps)))


class Hypercube:
    """The blocks that every node has. Nodes are dealt to corners, and the first corner is the source's alone."""

    def __init__(self, nodes: int, blocks: int) -> None:
        self.dimensions = nodes.bit_length() - 1
        self._blocks = blocks
        self._has: list[set[int]] = [set() for _ in range(nodes)]
        self._has[0] = set(range(blocks))
        others = 2**self.dimensions - 1
        self._corners: list[Corner] = [(0,), *(range(1 + corner, nodes, others) for corner in range(others))]

    def exchange(self, step: int) -> list[ScheduledSend]:
        """Return what each corner sends to the opposite one in a step, and what is passed within corners meanwhile."""
        opposite = 1 << (step % self.dimensions)
        given = [self._gives(number, self._corners[number ^ opposite], step) for number in range(len(self._corners))]
        seats = [self._seat(corner, block) for corner, block in zip(self._corners, given, strict=True)]
        transfers = [
            ScheduledSend(step, sender, seats[number ^ opposite][1], block)
            for number, ((sender, _), block) in enumerate(zip(seats, given, strict=True))
            if block is not None
        ]
        return transfers + [within for sender, receiver in seats for within in self._pass(step, receiver, sender)]

    def settle(self, step: int) -> list[ScheduledSend]:
        """Return what the two nodes of a corner give each other at the end, as either may lack a block."""
        pairs = [(one, other) for corner in self._corners for one in corner for other in corner if one != other]
        return [transfer for one, other in pairs for transfer in self._pass(step, one, other)]

    def carry(self, transfers: Sequence[ScheduledSend]) -> Sequence[ScheduledSend]:
        """Note that these blocks have arrived. Returns them."""
        for transfer in transfers:
            self._has[transfer.receiver].add(transfer.block)
        return transfers

    def _gives(self, number: int, opposite: Corner, step: int) -> int | None:
        """Return the block that a corner gives, or None where the opposite corner has it already."""
        highest = max((block for node in self._corners[number] for block in self._has[node]), default=None)
        block = highest if number else min(step, self._blocks - 1)
        return None if block is None or any(block in self._has[node] for node in opposite) else block

    def _seat(self, corner: Corner, block: int | None) -> tuple[int, int]:
        """Return which node of a corner sends this block, and which receives."""
        first, last = corner[0], corner[-1]
        return (first, last) if block is None or block in self._has[first] else (last, first)

    def _pass(self, step: int, sender: int, receiver: int) -> Iterator[ScheduledSend]:
        for block in sorted(self._has[sender] - self._has[receiver]):
            yield ScheduledSend(step, sender, receiver, block)
