"""Batches under way: no request is in two of them, and no two write the same blocks."""

from livescale.services.worker.scheduling.allocation import BlockAllocation
from livescale.services.worker.scheduling.flights import broken_flights
from livescale.services.worker.scheduling.sequence import Sequence
from tests.worker.serving import limits, submit


def sequence(id: str, blocks: range) -> Sequence:
    made = Sequence(submit(id), 0)
    made.blocks = blocks
    return made


def broken(running: list[Sequence], *batches: list[Sequence]) -> list[str]:
    allocation = BlockAllocation(limits())
    allocation.running = {one.request_id: one for one in running}
    under_way = {
        step: [(one, chunk) for one in batch for chunk in one.chunks(100)] for step, batch in enumerate(batches)
    }
    return list(broken_flights(under_way, allocation))


A, B = sequence("a", range(2)), sequence("b", range(2, 4))


def test_requests_with_blocks_of_their_own_may_be_under_way_together() -> None:
    assert broken([A, B], [A], [B]) == []
    assert broken([A, B], [A, B]) == []


def test_a_request_is_in_one_batch_at_a_time() -> None:
    assert broken([A], [A], [A]) == [
        "scheduler: a is in steps 0 and 1",
        "scheduler: a and a write the same blocks",
    ]


def test_two_that_run_never_write_the_same_blocks() -> None:
    other = sequence("c", range(1, 3))
    assert broken([A, other], [A], [other]) == ["scheduler: a and c write the same blocks"]


def test_blocks_of_a_request_that_has_ended_may_be_written_in_a_later_step() -> None:
    heir = sequence("c", range(2))
    assert broken([heir], [A], [heir]) == []
    assert broken([heir], [A, heir]) == ["scheduler: a and c write the same blocks"]


def test_a_request_that_is_held_is_in_no_batch() -> None:
    held = sequence("c", range(4, 6))
    held.held = True
    assert broken([held], [held]) == ["scheduler: c is run in step 0, and is not to be"]
