import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.planner.plans.block_groups import choose_count, group_blocks


@pytest.mark.parametrize(
    ("sizes", "count", "runs"),
    [
        ([1, 1, 1, 1], 2, [(0, 1), (2, 3)]),
        ([1, 1, 1, 1], 4, [(0,), (1,), (2,), (3,)]),
        ([4, 1, 1, 1, 1], 2, [(0,), (1, 2, 3, 4)]),
        ([1, 1, 1, 1, 4], 2, [(0, 1, 2, 3), (4,)]),
        ([1, 1], 5, [(0,), (1,)]),
        ([1, 9, 1], 3, [(0,), (1,), (2,)]),
    ],
)
def test_runs_have_about_equal_bytes(sizes: list[int], count: int, runs: list[tuple[int, ...]]) -> None:
    assert group_blocks(sizes, count) == runs


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.integers(1, 70))
def test_every_block_is_in_one_run_in_order_and_no_run_is_empty(sizes: list[int], count: int) -> None:
    runs = group_blocks(sizes, count)
    assert len(runs) == min(count, len(sizes))
    assert all(runs)
    assert [block for run in runs for block in run] == list(range(len(sizes)))


def test_the_elbow_is_where_more_blocks_hardly_help() -> None:
    """A block that costs nothing is cut off where little is left to win; one that costs, near the minimum or before."""
    free = choose_count(2, 1.0, 0.0, 64)
    assert 20 <= free < 64
    costly = choose_count(2, 1.0, 0.008, 64)
    assert costly < 16
    assert choose_count(0, 1.0, 0.001, 64) == 1


@given(st.integers(0, 8), st.floats(0.01, 100), st.floats(0, 0.1), st.integers(1, 64))
def test_no_other_number_is_much_better(besides: int, seconds: float, block_seconds: float, most: int) -> None:
    def takes(blocks: int) -> float:
        return (blocks + besides) * (seconds / blocks + block_seconds)

    chosen = choose_count(besides, seconds, block_seconds, most)
    assert takes(chosen) <= 1.03 * min(takes(blocks) for blocks in range(1, most + 1))
