"""KV that came is laid down between steps for a time, whatever copies and steps take, and for all requests together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.worker.disaggregation.incoming import IncomingKv
from livescale.services.worker.disaggregation.laying import (
    FIRST_LAID_BYTES,
    LAID_SHARE,
    LEAST_LAID_BYTES,
    most_laid,
    staged_bytes,
    take_round,
)
from livescale.services.worker.disaggregation.pieces import KvRegion
from tests.worker.disaggregation.test_incoming import LAYERS, MIB, POSITIONS, incoming

BUFFER = memoryview(bytearray(20 * MIB))


def came(*sizes: int) -> IncomingKv:
    """A transfer with a piece of each size, which are not all."""
    kv = incoming()
    for place, size in enumerate(sizes):
        kv.stage(KvRegion(place, place + 1, range(LAYERS)), BUFFER[:size])
    return kv


@given(rate=st.floats(1e9, 50e9), step=st.floats(0.002, 0.5))
def test_copies_between_two_steps_take_a_share_of_what_decodes_take(rate: float, step: float) -> None:
    assert most_laid(rate, step) / rate == pytest.approx(LAID_SHARE * step)


@pytest.mark.parametrize("step", [0.005, 0.02, 0.2])
def test_steps_that_are_slow_do_not_slow_the_link(step: float) -> None:
    each = most_laid(12e9, step)
    assert each / (step + each / 12e9) == pytest.approx(12e9 * LAID_SHARE / (1 + LAID_SHARE))


def test_before_anything_was_measured_and_at_slow_copies_it_is_a_number_of_bytes() -> None:
    assert most_laid(None, 0.02) == most_laid(12e9, 0.0) == FIRST_LAID_BYTES
    assert most_laid(1e6, 0.02) == LEAST_LAID_BYTES


@given(st.lists(st.lists(st.integers(1, 20 * MIB), max_size=4), max_size=4), st.integers(1, 30 * MIB))
def test_all_requests_share_one_bound_and_each_piece_is_taken_once_and_in_order(
    sizes: list[list[int]], most_bytes: int
) -> None:
    transfers = [came(*each) for each in sizes]
    assert staged_bytes(transfers) == sum(map(sum, sizes))
    taken: dict[int, list[KvRegion]] = {id(one): [] for one in transfers}
    while part := take_round(transfers, most_bytes):
        assert len(part) == 1 or sum(data.nbytes for *_, data in part) <= most_bytes
        for one, region, _ in part:
            taken[id(one)].append(region)
    assert staged_bytes(transfers) == 0
    for one, each in zip(transfers, sizes, strict=True):
        assert [region.start for region in taken[id(one)]] == list(range(len(each)))


def test_requests_that_wait_for_nothing_else_are_first_and_then_those_that_came_first() -> None:
    first, second, whole = came(3, 3), came(3, 3), incoming()
    whole.stage(KvRegion(0, POSITIONS, range(LAYERS)), BUFFER[:3])
    order = [one for one, _, _ in take_round([first, second, whole], 12)]
    assert order == [whole, first, first, second]
