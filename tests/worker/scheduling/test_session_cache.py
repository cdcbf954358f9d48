"""A conversation is kept by its id, prompt and answer, ahead of prompts without an id, until its time or the room is
up."""

from typing import Any

import pytest

from livescale.services.worker.scheduling.batch import Batch
from livescale.shared.messages.requests import Submit
from tests.worker.requests import random_prompt, submit
from tests.worker.scheduling.memory import Served

BASE = random_prompt(1, 2_000)
SECONDS = 60.0


def serving(*requests: Submit, **fields: Any) -> Served:
    run = Served(*requests, **{"context_blocks": 256, "context_seconds": SECONDS, **fields})
    run.to_the_end()
    return run


def ask(run: Served, request_id: str, prompt: list[int], **fields: Any) -> int:
    """Run a request, and return how many of its tokens were cached."""
    run.add(submit(request_id, prompt, **fields))
    run.to_the_end()
    return run.cached[request_id]


def chunks(batch: Batch) -> list[tuple[str, int, int]]:
    return [(chunk.request_id, chunk.start, chunk.stop) for chunk in batch.chunks]


@pytest.mark.parametrize(
    ("prompt", "answer", "found"),
    [(200, 300, 496), (128, 128, 240), (128, 129, 256), (20, 50, 64), (300, 10, 304), (9, 8, 16), (9, 7, 0)],
)
def test_the_next_prompt_of_a_conversation_finds_prompt_and_answer(prompt: int, answer: int, found: int) -> None:
    run = serving(submit("one", BASE[:prompt], max_tokens=answer, context_id="talk"))
    assert ask(run, "two", [*run.tokens["one"], 1, 2, 3], max_tokens=5, context_id="talk") == found


def test_the_answer_of_a_request_without_a_name_is_not_kept() -> None:
    run = serving(submit("one", BASE[:200], max_tokens=300))
    assert ask(run, "two", [*run.tokens["one"], 1], max_tokens=5, context_id="talk") == 192


def test_a_name_that_nobody_knows_is_no_error() -> None:
    assert ask(serving(), "one", BASE[:200], max_tokens=1, context_id="never heard") == 0


def test_an_answer_that_its_client_stopped_is_kept_as_far_as_it_came() -> None:
    run = Served(submit("one", BASE[:100], max_tokens=300, context_id="talk"), context_blocks=256)
    for _ in range(170):
        run.step()
    run.cancel("one")
    run.to_the_end()
    assert ask(run, "two", [*run.tokens["one"], 1], max_tokens=2) == 256


def test_what_of_a_cancelled_prompt_was_not_computed_is_not_computed_for_the_name() -> None:
    run = Served(submit("one", BASE[:500], max_tokens=9, context_id="talk"), context_blocks=256)
    run.scheduler.cancel("one")
    assert run.scheduler.next_batch() is None


def test_answers_are_computed_in_steps_that_have_no_other_prompt_a_chunk_at_a_time() -> None:
    run = Served(submit("one", BASE[:10], max_tokens=300, context_id="talk"), context_blocks=256)
    run.add(submit("decodes", BASE[400:410], max_tokens=320))
    while "one" not in run.ended:
        run.step()
    run.add(submit("prompt", BASE[600:900], max_tokens=4))
    assert ("prompt", 0, 128) in chunks(run.step())
    assert [one for one in chunks(run.step()) if one[0] == "one"] == [("one", 0, 128)]
    assert [one for one in chunks(run.step()) if one[0] == "one"] == [("one", 128, 256)]
    assert [one for one in chunks(run.step()) if one[0] == "one"] == [("one", 256, 304)]
    assert [one for one in chunks(run.step()) if one[0] == "one"] == []


def test_computing_a_kept_answer_counts_for_nothing() -> None:
    run = Served(submit("one", BASE[:10], max_tokens=300, context_id="talk"), context_blocks=256)
    while "one" not in run.ended:
        run.step()
    run.begin()
    assert run.scheduler.is_empty
    load = run.scheduler.load()
    assert (load.kv_blocks_used, load.running_requests, load.waiting_tokens) == (0, 0, 0)
    run.end()
    assert sum(batch.prefixes.queries for batch in run.batches) == 10


def test_a_request_that_needs_the_blocks_has_them_at_once_and_the_answer_is_computed_after_it() -> None:
    run = Served(submit("one", BASE[:10], max_tokens=400, context_id="talk"), context_blocks=56, kv_blocks=56)
    while "one" not in run.ended:
        run.step()
    assert chunks(run.step()) == [("one", 0, 128)]
    assert run.begin()
    run.add(submit("large", BASE[600:1100], max_tokens=3))
    run.end()
    assert run.step().chunks[0].request_id == "large"
    run.to_the_end()
    assert run.ended["large"] == "length"
    assert ask(run, "two", [*run.tokens["one"], 1], max_tokens=2, context_id="talk") == 400


def test_the_next_request_of_a_conversation_does_not_wait_for_its_answer_to_be_computed() -> None:
    run = Served(submit("one", BASE[:10], max_tokens=400, context_id="talk"), context_blocks=256)
    while "one" not in run.ended:
        run.step()
    run.step()
    run.begin()
    run.add(submit("two", [*run.tokens["one"], 1], max_tokens=2, context_id="talk"))
    run.end()
    assert chunks(run.step()) == [("two", 256, 384), ("two", 384, 411)], "two chunks are there, the others it computes"


def test_what_somebody_else_has_computed_meanwhile_is_named_and_not_computed_again() -> None:
    run = Served(submit("one", BASE[:10], max_tokens=100, context_id="talk"), context_blocks=256, kv_blocks=60)
    while "one" not in run.ended:
        run.step()
    assert ask(run, "same", [*run.tokens["one"], 1], max_tokens=2) == 0
    assert {one[0] for one in chunks(run.batches[-1])} == {"same"}
    for number in range(5):
        ask(run, f"other {number}", random_prompt(number, 300), max_tokens=1)
    assert ask(run, "two", [*run.tokens["one"], 1], max_tokens=1) == 96


def test_what_was_named_stays_ahead_of_what_was_not() -> None:
    """Room for 69 blocks beside a request of 19: a conversation of 18, and not three of the five others."""
    run = serving(submit("one", BASE[:200], max_tokens=100, context_id="talk"), kv_blocks=11 * 8)
    for number in range(5):
        ask(run, f"other {number}", random_prompt(number, 300), max_tokens=1)
    assert ask(run, "two", [*run.tokens["one"], 1], max_tokens=1) == 288


def test_the_context_that_was_used_last_stays() -> None:
    run = serving(context_blocks=4 * 8, kv_blocks=10 * 8)
    for name, begins in (("a", 0), ("b", 400), ("a", 0), ("c", 800)):
        ask(run, f"{name} {len(run.ended)}", BASE[begins : begins + 257], max_tokens=1, context_id=name)
    for number in range(12):
        ask(run, f"other {number}", random_prompt(number, 500), max_tokens=1)
    found = [ask(run, f"{begins} again", BASE[begins : begins + 257], max_tokens=1) for begins in (0, 400, 800)]
    assert found == [256, 0, 256]


def test_a_context_whose_time_is_up_stays_no_longer_than_others() -> None:
    run = serving(submit("one", BASE[:300], max_tokens=1, context_id="talk"), kv_blocks=11 * 8)
    run.scheduler.expire(SECONDS)
    for number in range(6):
        ask(run, f"other {number}", random_prompt(number, 300), max_tokens=1)
    assert ask(run, "two", BASE[:300], max_tokens=1) == 0


def test_an_answer_that_there_are_no_blocks_for_is_computed_once_there_are() -> None:
    run = Served(submit("one", BASE[:10], max_tokens=250, context_id="talk"), context_blocks=40, kv_blocks=40)
    while "one" not in run.ended:
        run.step()
    run.add(submit("other", BASE[400:800], max_tokens=9))
    while "other" not in run.ended:
        assert {one[0] for one in chunks(run.step())} == {"other"}
    run.to_the_end()
    assert ask(run, "two", [*run.tokens["one"], 1], max_tokens=2) == 256


def test_an_answer_whose_time_is_up_is_not_computed() -> None:
    run = Served(submit("one", BASE[:10], max_tokens=250, context_id="talk"), context_blocks=256, context_seconds=1.0)
    while "one" not in run.ended:
        run.step()
    run.scheduler.expire(2.0)
    assert not run.begin()


@pytest.mark.parametrize("fields", [{"context_blocks": 0}, {"enable_prefix_caching": False}])
def test_where_nothing_may_be_kept_nothing_is_computed_for_it(fields: dict[str, Any]) -> None:
    run = Served(submit("one", BASE[:10], max_tokens=300, context_id="talk"), **fields)
    run.to_the_end()
    assert len(run.batches) == 300


def test_an_engine_that_failed_has_no_contexts() -> None:
    run = serving(submit("one", BASE[:300], max_tokens=1, context_id="talk"))
    run.scheduler.fail("it did")
    assert ask(run, "two", BASE[:300], max_tokens=1, context_id="talk") == 0


def test_the_last_of_many_conversations_that_end_at_once_are_computed() -> None:
    run = serving(kv_blocks=2_000, context_blocks=2_000, max_num_seqs=80)
    for number in range(70):
        run.add(submit(f"{number}", BASE[number : number + 5], max_tokens=150, context_id=f"talk {number}"))
    run.to_the_end()
    found = [ask(run, f"{number} again", [*run.tokens[f"{number}"], 1], max_tokens=1) for number in range(70)]
    assert found == [0] * 6 + [144] * 64
