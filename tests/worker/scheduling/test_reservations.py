"""KV blocks that are kept for requests of other workers: nobody writes into another's, and nobody ready waits."""

import pytest
from msgspec.structs import replace

from livescale.services.worker.scheduling.batch import Chosen
from livescale.services.worker.scheduling.reservations import Reservation
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.messages.disaggregation import TakeOver
from livescale.shared.messages.requests import TokenLogprobs
from tests.worker.requests import limits, random_prompt, submit

TAKE_OVER = TakeOver(prefill="p", ticket=1, request_id="of p/1", generated=[5])


def make(blocks: int = 8, **fields: int) -> tuple[Scheduler, list[str]]:
    scheduler, dropped = Scheduler(limits(kv_blocks=blocks, **fields)), list[str]()
    scheduler.keep_prefixes()
    scheduler.reservations.on_drop = lambda one, reason: dropped.append(f"{one.name}: {reason}")
    return scheduler, dropped


def reserve(scheduler: Scheduler, name: str, tokens: int = 40, **fields: int) -> Reservation | None:
    return scheduler.reserve(name, submit(f"of {name}", random_prompt(7, tokens), **{"max_tokens": 4, **fields}))


def step(scheduler: Scheduler) -> list[str]:
    """Run a step, and return the requests in it."""
    batch = scheduler.next_batch()
    scheduler.check_invariants()
    if batch is None:
        return []
    scheduler.complete(batch, Chosen([1] * len(batch.samplings)), 0.0)
    scheduler.check_invariants()
    return [chunk.request_id for chunk in batch.chunks]


def test_a_request_that_was_reserved_for_goes_on_in_its_blocks_after_its_first_token() -> None:
    scheduler, _ = make()
    reservation = reserve(scheduler, "p/1")
    assert reservation is not None
    assert (scheduler.load().reserved_requests, scheduler.load().reserved_blocks) == (1, 3)
    assert not scheduler.is_empty
    assert (step(scheduler), scheduler.running()) == ([], [])
    scheduler.reservations.writer_ended(reservation)
    told = [TokenLogprobs(-1.0)]
    sequence = scheduler.take_over("p/1", replace(TAKE_OVER, logprobs=told))
    assert sequence.as_request().logprobs == told
    assert (sequence.computed, sequence.generated, len(scheduler.reservations)) == (40, 1, 0)
    assert step(scheduler) == ["of p/1"]


def test_a_request_that_was_sampled_while_its_kv_was_on_the_way_gets_all_blocks_that_it_lacks() -> None:
    scheduler, _ = make()
    reservation = reserve(scheduler, "p/1", max_tokens=60)
    assert reservation is not None
    scheduler.reservations.writer_ended(reservation)
    scheduler.take_over("p/1", replace(TAKE_OVER, generated=[5] * 40))
    assert step(scheduler) == ["of p/1"]
    assert scheduler.load().kv_blocks_used == 5


def test_blocks_are_free_when_both_the_request_and_the_writer_have_ended() -> None:
    for writer_first in (True, False):
        scheduler, _ = make()
        reservation = reserve(scheduler, "p/1")
        assert reservation is not None
        if writer_first:
            scheduler.reservations.writer_ended(reservation)
        else:
            assert not scheduler.reservations.drop("p/1", "test")
        scheduler.check_invariants()
        assert scheduler.load().kv_blocks_used == 3
        if writer_first:
            assert scheduler.reservations.drop("p/1", "test")
        else:
            scheduler.reservations.writer_ended(reservation)
        assert scheduler.load().kv_blocks_used == 0
        assert scheduler.is_empty


def test_an_order_that_comes_again_gets_no_blocks_while_the_first_ones_are_still_written_to() -> None:
    scheduler, _ = make()
    reservation = reserve(scheduler, "p/1")
    assert reservation is not None
    scheduler.reservations.drop("p/1", "test")
    assert reserve(scheduler, "p/1") is None
    scheduler.reservations.writer_ended(reservation)
    assert reserve(scheduler, "p/1") is not None


def test_what_is_dropped_or_still_written_to_is_not_taken_over() -> None:
    scheduler, _ = make()
    reservation = reserve(scheduler, "p/1")
    assert reservation is not None
    with pytest.raises(ValueError, match="still written"):
        scheduler.take_over("p/1", TAKE_OVER)
    scheduler.reservations.drop("p/1", "test")
    with pytest.raises(ValueError, match="dropped"):
        scheduler.take_over("p/1", TAKE_OVER)


def test_a_reservation_gives_way_to_a_request_that_is_ready_once_nothing_writes_any_more() -> None:
    scheduler, dropped = make(blocks=5)
    first, second = reserve(scheduler, "p/1", 20), reserve(scheduler, "p/2", 20)
    assert first is not None
    assert second is not None
    scheduler.add(submit("own", random_prompt(1, 40), max_tokens=4))
    assert step(scheduler) == []
    assert dropped == ["p/2: a request that is ready needs its place"]
    assert step(scheduler) == []
    assert len(dropped) == 1  # the other one stays as long as it is not known to be in the way
    scheduler.reservations.writer_ended(second)
    assert step(scheduler) == ["own"]


def test_a_reservation_gives_way_to_a_request_that_grows() -> None:
    scheduler, dropped = make(blocks=8, max_num_seqs=4)
    scheduler.add(submit("own", random_prompt(1, 30), max_tokens=60))
    step(scheduler)
    reservation = reserve(scheduler, "p/1", 60, max_tokens=8)
    assert reservation is not None
    scheduler.reservations.writer_ended(reservation)
    while not dropped:
        assert step(scheduler) == ["own"]
    assert dropped == ["p/1: a request that runs needs its blocks"]


def test_nothing_is_reserved_while_a_request_waits_or_all_slots_are_taken() -> None:
    scheduler, _ = make(max_num_seqs=1)
    scheduler.add(submit("own", random_prompt(1, 40)))
    assert reserve(scheduler, "p/1") is None
    step(scheduler)
    assert reserve(scheduler, "p/1") is None


def test_reserved_slots_are_not_given_to_others_and_give_way_where_these_are_ready() -> None:
    scheduler, dropped = make(max_num_seqs=1)
    reservation = reserve(scheduler, "p/1")
    assert reservation is not None
    scheduler.reservations.writer_ended(reservation)
    scheduler.add(submit("own", random_prompt(1, 40)))
    assert step(scheduler) == ["own"]
    assert len(dropped) == 1


def test_what_the_prefix_cache_has_need_not_come() -> None:
    scheduler, _ = make()
    scheduler.add(submit("own", random_prompt(7, 40), max_tokens=1))
    step(scheduler)
    reservation = reserve(scheduler, "p/1", 40)
    assert reservation is not None
    assert reservation.cached == 32
    assert scheduler.due_copies()[-1].target == reservation.sequence.blocks[:2]
    assert scheduler.due_copies() == ()


def test_when_the_engine_fails_nothing_is_kept() -> None:
    scheduler, dropped = make()
    reservation = reserve(scheduler, "p/1")
    assert reservation is not None
    assert scheduler.fail("broken") == []
    assert dropped == ["p/1: broken"]


def test_a_request_that_is_decoded_elsewhere_waits_after_its_first_token_with_its_kv() -> None:
    scheduler, _ = make()
    scheduler.add(submit("own", random_prompt(1, 40), max_tokens=4))
    sequence = scheduler.get("own")
    assert sequence is not None
    sequence.awaits_take_over = True
    assert step(scheduler) == ["own"]
    assert (sequence.generated, step(scheduler), scheduler.load().kv_blocks_used) == (1, [], 3)
    sequence.awaits_take_over = False
    assert step(scheduler) == ["own"]
