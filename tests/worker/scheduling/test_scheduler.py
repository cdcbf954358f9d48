"""Continuous batching: order, limits, ends, and what it refuses."""

from collections.abc import Iterable
from typing import Any

import pytest

from livescale.services.worker.scheduling.batch import PREFILL_CHUNK, Batch, Chosen, TokenOutput, Withheld
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.requests import PromptLogprobs, Submit, TokenLogprobs
from tests.worker.requests import limits, submit


def _scheduler(*requests: Submit, **fields: Any) -> Scheduler:
    scheduler = Scheduler(limits(**fields))
    for request in requests:
        scheduler.add(request)
    return scheduler


def _step(scheduler: Scheduler, token: int = 50, now: float = 0.0) -> tuple[Batch, list[TokenOutput]]:
    batch = scheduler.next_batch()
    assert batch is not None
    return batch, scheduler.complete(batch, Chosen([token] * len(batch.samplings)), now)


def _shape(batch: Batch) -> list[tuple[str, int, int]]:
    return [(chunk.request_id, chunk.start, chunk.stop) for chunk in batch.chunks]


def test_a_prompt_is_prefilled_in_chunks_and_then_decoded_token_by_token() -> None:
    scheduler = _scheduler(submit("a", range(300), max_tokens=3), max_num_batched_tokens=256)
    shapes, tokens = [], []
    for token in (7, 8, 9, 10):
        batch, outputs = _step(scheduler, token)
        shapes.append(_shape(batch))
        tokens += [(output.row.index, output.row.token_ids, output.row.finish_reason) for output in outputs]
    assert shapes == [[("a", 0, 128), ("a", 128, 256)], [("a", 256, 300)], [("a", 300, 301)], [("a", 301, 302)]]
    assert tokens == [(0, [8], None), (1, [9], None), (2, [10], "length")]
    assert scheduler.next_batch() is None


def test_the_rows_of_a_decode_are_the_token_just_chosen() -> None:
    scheduler = _scheduler(submit("a", [1, 2], max_tokens=4))
    _step(scheduler, token=77)
    batch, _ = _step(scheduler)
    (chunk,) = batch.chunks
    assert (chunk.tokens, chunk.start, chunk.decode) == ((77,), 2, True)
    assert chunk.sampling is not None
    assert chunk.sampling.index == 1


def test_decodes_go_first_and_prefill_takes_what_is_left() -> None:
    scheduler = _scheduler(submit("a", [1]), max_num_batched_tokens=144)
    _step(scheduler)
    scheduler.add(submit("b", range(200)))
    scheduler.add(submit("c", range(10)))
    batch, _ = _step(scheduler)
    assert _shape(batch) == [("a", 1, 2), ("c", 0, 10), ("b", 0, 128)]
    assert (batch.decode_rows, batch.prefill_rows) == (1, 138)


def test_a_resumed_request_replays_its_tokens_as_decodes() -> None:
    scheduler = _scheduler(submit("a", range(130), generated=[5, 6, 7], max_tokens=5))
    batch, outputs = _step(scheduler, token=8)
    assert [(chunk.start, chunk.stop, chunk.decode) for chunk in batch.chunks] == [
        (0, 128, False),
        (128, 130, False),
        (130, 133, True),
    ]
    assert len(batch.samplings) == 1
    assert (outputs[0].row.index, outputs[0].row.token_ids) == (3, [8])


def test_a_long_replay_is_cut_to_the_budget() -> None:
    scheduler = _scheduler(
        submit("a", range(10), generated=list(range(200)), max_tokens=300), max_num_batched_tokens=144
    )
    assert _shape(_step(scheduler)[0]) == [("a", 0, 10), ("a", 10, 144)]
    assert _shape(_step(scheduler)[0]) == [("a", 144, 210)]


def test_a_stop_token_ends_a_request() -> None:
    scheduler = _scheduler(submit("a", max_tokens=9, stop_token_ids=[50]))
    _, (output,) = _step(scheduler, token=50)
    assert (output.row.token_ids, output.row.finish_reason) == ([50], "stop")
    assert scheduler.load().kv_blocks_used == 0


def test_stop_tokens_are_forbidden_until_min_tokens() -> None:
    scheduler = _scheduler(submit("a", max_tokens=9, min_tokens=2, stop_token_ids=[50, 51]))
    forbidden = [_step(scheduler, token=1)[0].samplings[0].forbidden for _ in range(4)]
    assert forbidden == [(50, 51), (50, 51), (), ()]


def test_lower_priority_numbers_go_first_then_arrival() -> None:
    requests = [submit("a", priority=1), submit("b"), submit("c"), submit("d", priority=-1)]
    scheduler = _scheduler(*requests, max_num_seqs=3)
    assert [chunk.request_id for chunk in _step(scheduler)[0].chunks] == ["d", "b", "c"]


def test_no_more_than_max_num_seqs_run() -> None:
    scheduler = _scheduler(*(submit(str(number)) for number in range(5)), max_num_seqs=2)
    assert len(_step(scheduler)[0].chunks) == 2
    assert (scheduler.load().running_requests, scheduler.load().waiting_requests) == (2, 3)


def test_a_request_waits_for_kv_blocks_and_nobody_overtakes_it() -> None:
    scheduler = _scheduler(
        submit("a", range(30), max_tokens=2), submit("b", range(30), max_tokens=20), submit("c"), kv_blocks=4
    )
    assert [chunk.request_id for chunk in _step(scheduler)[0].chunks] == ["a"]
    _step(scheduler)
    assert [chunk.request_id for chunk in _step(scheduler)[0].chunks] == ["b"]


def test_cancelling_frees_the_kv_at_once() -> None:
    scheduler = _scheduler(submit("a"), submit("b"), max_num_seqs=1)
    batch = scheduler.next_batch()
    assert batch is not None
    for request_id in ("a", "b"):
        output = scheduler.cancel(request_id)
        assert output is not None
        assert (output.row.finish_reason, output.row.token_ids) == ("cancelled", [])
    assert scheduler.load().kv_blocks_used == 0
    assert scheduler.complete(batch, Chosen([50]), now=0.0) == []
    assert scheduler.next_batch() is None


def test_cancelling_what_is_not_here_does_nothing() -> None:
    assert _scheduler().cancel("a") is None


def test_an_id_that_comes_back_during_its_last_step_gets_none_of_its_tokens() -> None:
    scheduler = _scheduler(submit("a", [1, 2, 3]))
    batch = scheduler.next_batch()
    assert batch is not None
    scheduler.cancel("a")
    scheduler.add(submit("a", [4, 5]))
    assert scheduler.complete(batch, Chosen([50]), now=0.0) == []
    assert _step(scheduler)[0].chunks[0].tokens == (4, 5)


def test_requests_end_at_their_deadline_waiting_or_running() -> None:
    scheduler = _scheduler(
        submit("a", deadline=10.0), submit("b", deadline=10.0), submit("c", deadline=12.0), max_num_seqs=1
    )
    _step(scheduler, now=9.0)
    _, outputs = _step(scheduler, token=50, now=10.0)
    ends = [(output.row.request_id, output.row.index, output.row.token_ids) for output in outputs]
    assert ends == [("a", 1, [50]), ("b", 0, [])]
    assert {output.row.finish_reason for output in outputs} == {"deadline"}
    assert scheduler.load().waiting_requests == 1


def test_a_failure_ends_everything_with_its_reason() -> None:
    scheduler = _scheduler(submit("a"), submit("b", gateway="h"), max_num_seqs=1)
    scheduler.next_batch()
    outputs = scheduler.fail("out of memory")
    assert [(output.gateway, output.row.finish_reason, output.row.error) for output in outputs] == [
        ("g", "error", "out of memory"),
        ("h", "error", "out of memory"),
    ]
    assert scheduler.next_batch() is None


def test_one_batch_is_under_way_at_a_time() -> None:
    scheduler = _scheduler(submit("a"))
    scheduler.next_batch()
    with pytest.raises(RuntimeError, match="under way"):
        scheduler.next_batch()


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (submit(prompt=[]), "prompt is empty"),
        (submit(max_tokens=0), "nothing is left to do"),
        (submit(generated=[1, 2], max_tokens=2), "nothing is left to do"),
        (submit(prompt=range(100), max_tokens=29), "129 tokens, max_model_len is 128"),
        (submit(prompt=range(60), max_tokens=37), "97 tokens, the whole KV cache holds 96"),
        (submit(prompt=[1, 500]), "token id 500 is not in the vocabulary of 500"),
        (submit(prompt=[-1]), "token id -1"),
        (submit(generated=[501]), "token id 501"),
        (submit(stop_token_ids=[502]), "token id 502"),
    ],
)
def test_a_request_that_never_fits_is_refused(request_: Submit, reason: str) -> None:
    scheduler = _scheduler(max_model_len=128, kv_blocks=6, vocab_size=500)
    with pytest.raises(Refusal, match=reason) as refusal:
        scheduler.add(request_)
    assert refusal.value.code == 400


def test_one_more_than_may_wait_is_refused_for_now() -> None:
    scheduler = _scheduler(*(submit(str(number)) for number in range(5)), max_num_seqs=2, max_num_waiting=3)
    with pytest.raises(Refusal, match="3 requests already wait") as refusal:
        scheduler.add(submit("more"))
    assert (refusal.value.code, refusal.value.retry_after_ms) == (429, 100)
    scheduler.cancel("4")
    scheduler.add(submit("more"))


def test_an_id_that_is_here_is_refused() -> None:
    scheduler = _scheduler(submit("a"))
    with pytest.raises(Refusal, match="already here") as refusal:
        scheduler.add(submit("a"))
    assert refusal.value.code == 409


@pytest.mark.parametrize("rows", [PREFILL_CHUNK + 15, 2_049])
def test_limits_that_would_starve_prompts_or_break_row_invariance_are_refused(rows: int) -> None:
    with pytest.raises(ValueError, match="max_num_batched_tokens"):
        limits(max_num_seqs=16, max_num_batched_tokens=rows)


def test_load_says_what_waits_and_what_is_held() -> None:
    scheduler = _scheduler(submit("a", range(300), max_tokens=20), submit("b", range(50)), max_num_batched_tokens=144)
    assert scheduler.load().waiting_tokens == 350
    _step(scheduler)
    load = scheduler.load()
    assert load.waiting_tokens == 172 + 50
    assert load.kv_blocks_used == 19 + 4


def _withheld(scheduler: Scheduler, reason: str) -> tuple[Batch, list[TokenOutput]]:
    """A step in which request "a" gets no token."""
    batch = scheduler.next_batch()
    assert batch is not None
    place = [chunk.request_id for chunk in batch.chunks if chunk.sampling is not None].index("a")
    return batch, scheduler.complete(
        batch, Chosen([50] * len(batch.samplings), withheld={place: Withheld(reason)}), 0.0
    )


@pytest.mark.parametrize(("prompt", "cut"), [([1, 2, 3], 0), (range(200), 192), (range(136), 128), (range(129), 128)])
def test_where_a_token_is_withheld_only_the_last_rows_are_run_again(prompt: Iterable[int], cut: int) -> None:
    scheduler = _scheduler(submit("a", prompt, max_tokens=2), submit("b", [4, 5], max_tokens=9))
    first, outputs = _withheld(scheduler, "")
    assert [output.row.request_id for output in outputs] == ["b"]
    [stop] = [chunk.stop for chunk in first.chunks if chunk.request_id == "a" and chunk.sampling is not None]
    again, outputs = _step(scheduler)
    assert [shape for shape in _shape(again) if shape[0] == "a"] == [("a", cut, stop)]
    scheduler.check_invariants()
    later, _ = _withheld(scheduler, "")
    again, outputs = _step(scheduler)
    assert [one for one in later.chunks if one.request_id == "a"] == [
        one for one in again.chunks if one.request_id == "a"
    ]
    assert [(output.row.index, output.row.finish_reason) for output in outputs if output.row.request_id == "a"] == [
        (1, "length")
    ]


def test_generated_tokens_that_are_replayed_are_not_run_again_but_the_last() -> None:
    scheduler = _scheduler(submit("a", range(20), generated=[5, 6, 7], max_tokens=5))
    _withheld(scheduler, "")
    assert _shape(_step(scheduler)[0]) == [("a", 22, 23)]


def test_what_is_told_of_a_prompt_is_kept_where_its_token_is_withheld() -> None:
    scheduler = _scheduler(submit("a", range(20), prompt_logprobs=PromptLogprobs()))
    told = [TokenLogprobs(float(-position)) for position in range(1, 20)]
    for withheld, prompts in (({0: Withheld()}, told), ({}, told[16:])):
        batch = scheduler.next_batch()
        assert batch is not None
        outputs = scheduler.complete(batch, Chosen([50], prompts={0: prompts}, withheld=withheld), 0.0)
    assert [output.row.prompt_logprobs for output in outputs] == [told]


def test_a_token_that_never_comes_ends_its_request_with_the_reason() -> None:
    scheduler = _scheduler(submit("a"), submit("b"))
    _, outputs = _withheld(scheduler, "its grammar failed")
    told = {output.row.request_id: (output.row.error, output.row.code) for output in outputs}
    assert told == {"a": ("its grammar failed", 422), "b": (None, None)}
    assert "a" not in scheduler
    assert scheduler.give_up(scheduler.in_order[0], Withheld()) == []


def test_a_request_that_awaits_its_mask_is_not_run() -> None:
    scheduler = _scheduler(submit("a"), submit("b"))
    waiting = scheduler.get("a")
    assert waiting is not None
    waiting.awaits_mask = True
    assert [shape[0] for shape in _shape(_step(scheduler)[0])] == ["b"]
    waiting.awaits_mask = False
    assert "a" in [shape[0] for shape in _shape(_step(scheduler)[0])]


@pytest.mark.parametrize("enabled", [False, True])
def test_it_says_that_prompts_are_kept_once_they_are(enabled: bool) -> None:
    scheduler = _scheduler(enable_prefix_caching=enabled)
    assert not scheduler.load().keeps_prefixes
    scheduler.keep_prefixes()
    assert scheduler.load().keeps_prefixes == enabled
