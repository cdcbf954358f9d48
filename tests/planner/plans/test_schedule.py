"""The binomial pipeline: as few steps as there can be, for any number of nodes and blocks."""

from collections import Counter
from itertools import product
from math import ceil, log2

from livescale.services.planner.plans.schedule import ScheduledSend, schedule

NODES = range(2, 41)


def fewest_steps(nodes: int, blocks: int) -> int:
    return blocks + ceil(log2(nodes)) - 1


def carry_out(nodes: int, blocks: int, transfers: tuple[ScheduledSend, ...]) -> list[set[int]]:
    """What every node has in the end; no node sends what came in the same step, or what the other one has."""
    has: list[set[int]] = [set(range(blocks)), *(set() for _ in range(nodes - 1))]
    for step in sorted({transfer.step for transfer in transfers}):
        now = [transfer for transfer in transfers if transfer.step == step]
        for _, sender, receiver, block in now:
            assert block in has[sender]
            assert block not in has[receiver]
        for _, _, receiver, block in now:
            has[receiver].add(block)
    return has


def test_all_have_all_after_b_plus_log_n_minus_1_steps() -> None:
    for nodes, blocks in product(NODES, (*range(1, 13), 16, 25, 40)):
        transfers = schedule(nodes, blocks)
        assert carry_out(nodes, blocks, transfers) == [set(range(blocks))] * nodes, (nodes, blocks)
        assert 1 + max(transfer.step for transfer in transfers) == fewest_steps(nodes, blocks), (nodes, blocks)


def test_a_node_sends_and_receives_one_block_a_step() -> None:
    for nodes, blocks in product(NODES, (1, 2, 7, 16, 40)):
        transfers = schedule(nodes, blocks)
        assert max(Counter((transfer.step, transfer.sender) for transfer in transfers).values()) == 1, (nodes, blocks)
        assert max(Counter((transfer.step, transfer.receiver) for transfer in transfers).values()) == 1, (nodes, blocks)
        assert len(transfers) == (nodes - 1) * blocks


def test_the_source_gives_another_block_in_every_step() -> None:
    for nodes in NODES:
        given = [transfer.block for transfer in schedule(nodes, 16) if transfer.sender == 0 and transfer.step < 16]
        assert given == list(range(16)), nodes


def test_in_a_hypercube_everyone_has_a_block_after_log_n_steps() -> None:
    """LambdaScale 4.2."""
    assert {transfer.receiver for transfer in schedule(16, 8) if transfer.step < 4} == set(range(1, 16))


def test_a_node_alone_has_nothing_to_do() -> None:
    assert schedule(1, 5) == ()
