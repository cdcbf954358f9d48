"""Copies that follow one another are one."""

import pytest

from livescale.services.worker.prefix.copies import Copies

Pair = tuple[int, int]


def copied(*pairs: Pair) -> list[tuple[range, range]]:
    copies = Copies()
    for source, target in pairs:
        copies.add(source, target)
    return [(copy.source, copy.target) for copy in copies.take()]


def test_blocks_that_follow_one_another_are_copied_together() -> None:
    assert copied((1, 11), (2, 12), (3, 13), (9, 14)) == [(range(1, 4), range(11, 14)), (range(9, 10), range(14, 15))]


@pytest.mark.parametrize(
    "pairs",
    [
        [(1, 12), (2, 11)],  # targets in another order
        [(1, 2), (2, 3)],  # what is copied here is what came there
        [(2, 1), (3, 2)],
        [(-1, 4), (0, 5)],  # one in host memory, the other not
        [(4, -1), (5, 0)],
    ],
)
def test_what_cannot_be_one_copy_is_two(pairs: list[Pair]) -> None:
    assert len(copied(*pairs)) == 2


def test_blocks_of_host_memory_are_copied_together() -> None:
    assert copied((-3, 1), (-2, 2)) == [(range(-3, -1), range(1, 3))]


def test_what_was_taken_is_not_due_again() -> None:
    copies = Copies()
    copies.add(1, 2)
    assert len(copies.take()) == 1
    assert copies.take() == ()
