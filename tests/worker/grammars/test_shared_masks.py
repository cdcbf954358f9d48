"""The memory of masks that two processes share: what one side writes into a slot, the other one reads there."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from livescale.services.worker.grammars.shared_masks import REASON_BYTES, SharedMasks, Working

SLOTS, VOCABULARY = 3, 1_001


@pytest.fixture
def sides() -> Iterator[tuple[SharedMasks, SharedMasks]]:
    file = os.memfd_create("masks")
    try:
        yield SharedMasks(file, SLOTS, VOCABULARY), SharedMasks(file, SLOTS, VOCABULARY)
    finally:
        os.close(file)


Sides = tuple[SharedMasks, SharedMasks]


def test_a_mask_is_read_by_the_other_side_in_its_own_slot(sides: Sides) -> None:
    writes, reads = sides
    assert [reads.number(slot) for slot in range(SLOTS)] == [0] * SLOTS
    writes.begin(1, 7, thread=99, begun=0.5)
    assert reads.working(1) == Working(7, 99, 0.5)
    assert reads.number(1) == 0
    ones = b"\xff" * writes.mask_bytes
    writes.mask(1)[:] = ones
    writes.finish(1, 7, 0.25)
    assert (reads.number(1), reads.failure(1), reads.seconds(1), reads.working(1)) == (7, None, 0.25, None)
    assert [bytes(reads.mask(slot)) for slot in range(SLOTS)] == [bytes(len(ones)), ones, bytes(len(ones))]


def test_there_is_a_bit_for_each_token_of_the_vocabulary(sides: Sides) -> None:
    assert 8 * sides[0].mask_bytes >= VOCABULARY > 8 * sides[0].mask_bytes - 32
    assert sides[0].mask(0).nbytes == sides[0].mask_bytes


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reason=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=300))
def test_a_failure_says_why_as_far_as_there_is_room_and_the_next_mask_is_none(sides: Sides, reason: str) -> None:
    writes, reads = sides
    writes.finish(0, 1, 0.0, reason)
    told = reads.failure(0)
    assert told is not None
    whole = reason.encode()
    assert (
        told == reason
        if len(whole) <= REASON_BYTES
        else told.startswith(whole[: REASON_BYTES - 3].decode(errors="ignore"))
    )
    writes.finish(0, 2, 0.0)
    assert reads.failure(0) is None


def test_work_that_was_stopped_is_nobodys(sides: Sides) -> None:
    writes, reads = sides
    writes.begin(2, 3, thread=99, begun=0.5)
    reads.stop(2)
    assert writes.working(2) is None
