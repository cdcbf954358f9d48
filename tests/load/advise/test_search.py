"""The search for the smallest pool, over what a plain function says of each choice."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.load.advise.search import PoolChoice, first_that_holds, search


@dataclass(frozen=True)
class Outcome:
    holds: bool


@given(st.integers(0, 40), st.integers(1, 40))
def test_the_first_value_is_found_with_few_tries(first: int, count: int) -> None:
    asked = list[int]()

    def holds(value: int) -> bool:
        asked.append(value)
        return value >= first

    assert first_that_holds(range(count), holds) == (first if first < count else None)
    assert len(asked) <= 1 + count.bit_length()


def test_nothing_holds_where_there_is_nothing() -> None:
    assert first_that_holds([], lambda value: True) is None


@pytest.mark.parametrize(("workers", "least"), [(5, 0), (5, 3), (5, 5), (2, 1), (16, 16)])
def test_the_smallest_pool_comes_first_and_then_the_fewest_instances(workers: int, least: int) -> None:
    tried = list[PoolChoice]()

    def attempt(choice: PoolChoice) -> Outcome:
        tried.append(choice)
        return Outcome(choice.workers >= workers and choice.least >= least)

    found = search(range(1, 17), lambda pool: pool, attempt)
    assert found.choice == (workers, least)
    assert sorted(found.tried) == sorted(tried)  # none was tried twice


def test_no_choice_is_made_where_the_largest_pool_does_not_hold() -> None:
    found = search(range(1, 17), lambda pool: pool, lambda choice: Outcome(False))
    assert found.choice is None
    assert list(found.tried) == [(16, 16)]
