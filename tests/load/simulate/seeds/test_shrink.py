from collections.abc import Sequence

import pytest

from livescale.load.simulate.seeds.shrink import shrink


@pytest.mark.parametrize("needed", [[], [7], [0, 19], [3, 4, 5], [0, 6, 12, 18], list(range(20))])
def test_what_is_left_is_what_fails_and_nothing_else(needed: list[int]) -> None:
    tried: list[Sequence[int]] = []

    def fails(some: Sequence[int]) -> bool:
        tried.append(some)
        return set(needed) <= set(some)

    assert shrink(range(20), fails, tries=1_000) == needed
    assert len(tried) < 250


def test_tries_are_limited_and_what_is_left_fails() -> None:
    tries = 0

    def fails(some: Sequence[int]) -> bool:
        nonlocal tries
        tries += 1
        return {3, 11} <= set(some)

    left = shrink(range(20), fails, tries=4)
    assert tries == 4
    assert {3, 11} <= set(left)


def test_without_tries_everything_is_left() -> None:
    assert shrink([5, 6], lambda some: True, tries=0) == [5, 6]
    assert shrink([], lambda some: True, tries=9) == []
