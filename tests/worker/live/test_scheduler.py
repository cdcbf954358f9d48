"""The scheduler where requests come from, or go to, another worker."""

import pytest

from livescale.services.worker.scheduling.batch import Batch, Chosen, LayerEntry, share_left
from livescale.services.worker.scheduling.rates import EngineRates
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.services.worker.scheduling.sequence import Filled
from livescale.shared.messages.requests import Submit
from tests.worker.requests import limits, submit

LAYERS = 2
ROW, DECODES = 0.0001, 0.0128  # seconds of a row through all layers, and of a step of decodes
MOST_STEPS = 2.1  # of decodes alone, that a token may take to the next


def entry(request: Submit, layers: int = LAYERS, of: int = 3) -> LayerEntry:
    rows = len(request.prompt)
    return LayerEntry(layers, rows, memoryview(bytearray(4 * rows)), share_left(layers, of))


def step(scheduler: Scheduler, token: int = 50) -> Batch:
    batch = scheduler.next_batch()
    assert batch is not None
    scheduler.complete(batch, Chosen([token] * len(batch.samplings)), 0.0)
    scheduler.check_invariants()
    return batch


def test_an_adopted_request_comes_in_at_its_layer_behind_those_that_come_in_before() -> None:
    scheduler = Scheduler(limits())
    long = submit("adopted", range(200))
    scheduler.adopt(long, entry(long))
    scheduler.add(submit("own", range(10)))
    batch = step(scheduler)
    pieces = [(piece.request_id, piece.layer, piece.start, piece.stop) for piece in batch.chunks]
    assert pieces == [("own", 0, 0, 10), ("adopted", LAYERS, 0, 128), ("adopted", LAYERS, 128, 200)]
    assert len(batch.samplings) == 2


def test_its_first_token_is_chosen_without_the_kv_and_no_other_is() -> None:
    scheduler = Scheduler(limits())
    request = submit("a", range(40), max_tokens=4)
    late = scheduler.adopt(request, entry(request))
    assert late is not None
    assert len(step(scheduler).samplings) == 1
    assert scheduler.next_batch() is None
    assert not scheduler.is_empty
    scheduler.kv_came("a", late, memoryview(bytearray(8)))
    batch = step(scheduler)
    ((kv, piece),) = zip(batch.imports, batch.chunks, strict=True)
    assert (kv.layers, len(kv.blocks), piece.layer, piece.start, piece.decode) == (LAYERS, 3, 0, 40, True)
    assert step(scheduler).imports == ()


def test_kv_that_is_lost_has_everything_computed_again_with_the_token_it_has() -> None:
    scheduler = Scheduler(limits())
    request = submit("a", range(40), max_tokens=4)
    late = scheduler.adopt(request, entry(request))
    assert late is not None
    step(scheduler, token=7)
    scheduler.kv_came("a", late, None)
    scheduler.check_invariants()
    pieces = [(piece.layer, piece.start, piece.tokens[-1]) for piece in step(scheduler).chunks]
    assert pieces == [(0, 0, 39), (0, 40, 7)]


def test_kv_of_a_request_that_ended_or_came_again_is_nobodys() -> None:
    scheduler = Scheduler(limits())
    request = submit("a", range(40), max_tokens=4)
    late = scheduler.adopt(request, entry(request))
    assert late is not None
    scheduler.cancel("a")
    scheduler.kv_came("a", late, memoryview(bytearray(8)))
    scheduler.adopt(request, entry(request))
    scheduler.kv_came("a", late, memoryview(bytearray(8)))
    step(scheduler)
    assert scheduler.next_batch() is None


def test_what_is_held_is_not_run_and_what_is_released_leaves_no_blocks() -> None:
    scheduler = Scheduler(limits())
    for name in "ab":
        scheduler.add(submit(name, range(20)))
    a, b = scheduler.start()
    a.held = b.held = True
    assert scheduler.next_batch() is None
    b.held = False
    assert [piece.request_id for piece in step(scheduler).chunks] == ["b"]
    assert (scheduler.is_begun(a), scheduler.is_begun(b)) == (False, True)
    scheduler.release("a")
    scheduler.release("b")
    assert scheduler.is_empty
    assert scheduler.load().kv_blocks_used == 0


def test_more_is_wanted_when_nothing_is_left_to_prefill_and_there_is_room() -> None:
    scheduler = Scheduler(limits(max_num_seqs=2, max_num_batched_tokens=256, kv_blocks=20))
    assert scheduler.wants_more()
    scheduler.add(submit("a", range(10), max_tokens=9))
    assert not scheduler.wants_more()
    step(scheduler)
    assert scheduler.wants_more()  # it decodes
    scheduler.add(submit("b", range(100), max_tokens=9))
    step(scheduler)
    assert not scheduler.wants_more()  # two are as many as may run
    scheduler.cancel("a")
    assert not scheduler.wants_more()  # there is no room for a step's worth of prompt
    scheduler.cancel("b")
    assert scheduler.wants_more()


def test_a_request_past_its_deadline_ends_without_a_step() -> None:
    scheduler = Scheduler(limits())
    scheduler.add(submit("a", deadline=10.0))
    assert scheduler.next_deadline() == 10.0
    assert scheduler.expire(9.9) == []
    assert [output.row.finish_reason for output in scheduler.expire(10.0)] == ["deadline"]
    assert scheduler.next_deadline() is None


def test_an_adopted_request_goes_on_from_what_is_filled_in_the_blocks_where_it_is() -> None:
    scheduler = Scheduler(limits())
    scheduler.adopt(submit("a", range(40), max_tokens=9, generated=[7] * 5), filled=Filled(3, 42))
    scheduler.check_invariants()
    ((piece,),) = (step(scheduler).chunks,)
    assert (piece.start, piece.stop, piece.blocks, piece.decode) == (42, 45, range(3, 6), True)


def test_where_somebody_has_the_blocks_it_is_computed_again() -> None:
    scheduler = Scheduler(limits())
    scheduler.add(submit("own", range(40)))
    step(scheduler)
    scheduler.adopt(submit("a", range(40), max_tokens=9, generated=[7] * 5), filled=Filled(2, 42))
    pieces = [piece for piece in step(scheduler).chunks if piece.request_id == "a"]
    assert [(piece.start, piece.stop) for piece in pieces] == [(0, 40), (40, 45)]


def test_what_is_filled_is_kept_of_those_that_stay() -> None:
    scheduler = Scheduler(limits())
    for id in ("stays", "leaves", "bare"):
        scheduler.add(submit(id, range(20), max_tokens=9))
    step(scheduler)
    for sequence in scheduler.placed[:2]:
        sequence.filled = Filled(sequence.blocks.start, 20)
    scheduler.start_over(kept=("stays", "bare"))
    scheduler.check_invariants()
    assert {one.request_id: one.computed for one in scheduler.in_order} == {"stays": 20, "leaves": 0, "bare": 0}
    assert [one.request_id for one in scheduler.placed] == ["stays"]


def test_more_is_wanted_as_the_step_ends_that_prefills_the_last_of_what_is_here() -> None:
    scheduler = Scheduler(limits(max_num_seqs=4, max_num_batched_tokens=132))
    scheduler.add(submit("a", range(200), max_tokens=9))
    first = scheduler.next_batch()
    assert first is not None
    assert not scheduler.wants_more(first)  # a part of it is left
    scheduler.complete(first, Chosen([]), 0.0)
    last = scheduler.next_batch()
    assert last is not None
    assert not scheduler.wants_more()
    assert scheduler.wants_more(last)
    scheduler.add(submit("b", range(10), max_tokens=9))
    assert not scheduler.wants_more(last)


def paced_step(scheduler: Scheduler, rates: EngineRates) -> tuple[Batch, float]:
    """Run a step, and return how many steps of decodes alone it took."""
    batch = scheduler.next_batch(pace=rates.pace)
    assert batch is not None
    work = sum(chunk.work for chunk in batch.chunks if not chunk.decode)
    seconds = ROW * work + (DECODES if batch.decode_rows else 0.0)
    rates.observe(batch, seconds)
    scheduler.complete(batch, Chosen([7] * len(batch.samplings)), 0.0)
    scheduler.check_invariants()
    return batch, seconds / DECODES


@pytest.mark.parametrize("layers", [1, 8, 15, 16])
def test_what_is_pulled_holds_streams_up_no_longer_than_their_own_prompts_may(layers: int) -> None:
    scheduler, rates = Scheduler(limits(kv_blocks=4_000, max_num_batched_tokens=2_048)), EngineRates()
    streams = [submit(f"stream-{number}", range(50), max_tokens=400) for number in range(3)]
    for stream in streams:
        scheduler.add(stream)
    batches = [paced_step(scheduler, rates)[0]]
    for number in range(12):  # at a new instance: it has never run decodes alone
        pulled = submit(f"pulled-{number}", [7] * 1_600, max_tokens=1)
        late = scheduler.adopt(pulled, entry(pulled, layers, of=16))
        assert late is not None
        scheduler.kv_came(pulled.request_id, late, memoryview(b""))
    while any(f"pulled-{number}" in scheduler for number in range(12)):
        batch, steps = paced_step(scheduler, rates)
        batches.append(batch)
        assert {stream.request_id for stream in streams} <= {chunk.request_id for chunk in batch.chunks if chunk.decode}
        assert steps <= MOST_STEPS
    # Not much longer either than the pace makes it: rows of which less is left go in greater numbers.
    alone = 12 * 1_600 * share_left(layers, 16) * ROW / DECODES / (limits().tbt_ratio - 1)
    assert len(batches) <= 1.25 * alone + 10
