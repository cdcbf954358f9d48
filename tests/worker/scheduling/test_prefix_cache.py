"""What is kept of prompts, what is found again, and what is evicted."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.worker.kv.block_manager import BlockManager
from livescale.services.worker.scheduling.batch import PREFILL_CHUNK, KvCopy
from livescale.services.worker.scheduling.prefix_cache import PendingCopies, PrefixCache, fetch_pays
from livescale.services.worker.scheduling.rates import DecodePace
from livescale.services.worker.scheduling.sequence import Sequence
from tests.fuzz.effort import examples
from tests.worker.requests import limits, random_prompt, submit
from tests.worker.scheduling.memory import Served

BASE = random_prompt(1, 1_000)


def cached_after(first: list[int], then: list[int], **fields: Any) -> int:
    """Return how many tokens of a prompt are found after another one."""
    run = Served(submit("first", first, max_tokens=1))
    run.to_the_end()
    run.add(submit("then", then, max_tokens=2, **fields))
    run.to_the_end()
    return run.cached["then"]


@pytest.mark.parametrize(
    ("shared", "found"), [(0, 0), (1, 0), (15, 0), (16, 16), (31, 16), (128, 128), (255, 240), (300, 288), (400, 400)]
)
def test_as_many_whole_blocks_as_two_prompts_begin_with_alike_are_found(shared: int, found: int) -> None:
    other = random_prompt(2, 500)
    assert cached_after(BASE[:400], [*BASE[:shared], *other[shared:]]) == found


@pytest.mark.parametrize(("length", "found"), [(1, 0), (16, 0), (17, 16), (32, 16), (128, 112), (257, 256)])
def test_the_last_token_of_the_same_prompt_is_computed_again(length: int, found: int) -> None:
    assert cached_after(BASE[:length], BASE[:length]) == found


def test_where_tokens_follow_a_prompt_all_of_it_may_be_found() -> None:
    assert cached_after(BASE[:256], BASE[:256], generated=[5]) == 256


def test_what_was_generated_is_no_part_of_what_is_found() -> None:
    run = Served(submit("a", BASE[:250], max_tokens=20))
    run.to_the_end()
    run.add(submit("b", run.tokens["a"], max_tokens=2))
    run.to_the_end()
    run.add(submit("c", run.tokens["b"], max_tokens=2))
    run.to_the_end()
    assert run.cached == {"a": 0, "b": 240, "c": 256}


def test_requests_that_run_find_what_others_that_run_have_computed() -> None:
    run = Served(submit("a", BASE[:300], max_tokens=50))
    run.step()
    run.add(submit("b", BASE[:280], max_tokens=9))
    batch = run.step()
    assert [(chunk.request_id, chunk.start, chunk.stop) for chunk in batch.chunks] == [("a", 300, 301), ("b", 272, 280)]
    assert (batch.prefixes.queries, batch.prefixes.hits) == (280, 272)
    assert run.step().prefixes.queries == 0


def test_blocks_of_what_is_kept_count_as_free() -> None:
    run = Served(submit("a", BASE[:500], max_tokens=1))
    run.to_the_end()
    assert run.scheduler.load().kv_blocks_used == 0


def test_a_prompt_as_long_as_the_whole_cache_runs_and_leaves_nothing() -> None:
    run = Served(submit("a", BASE[:256], max_tokens=1), kv_blocks=32)
    run.to_the_end()
    run.add(submit("whole", [9] * 511, max_tokens=1))
    run.to_the_end()
    run.add(submit("b", BASE[:256], max_tokens=1))
    run.to_the_end()
    assert run.ended == dict.fromkeys(("a", "whole", "b"), "length")
    assert run.cached["b"] == 0


def test_the_least_recently_used_goes_first_and_the_end_of_a_prompt_before_its_beginning() -> None:
    """Room for 55 blocks beside a request of 17: three prompts, and half of the one not used for longest."""
    run = Served(kv_blocks=9 * 8)
    for name, prompt in (("a", BASE[:256]), ("b", BASE[300:556]), ("a again", BASE[:257]), ("c", BASE[600:856])):
        run.add(submit(name, prompt, max_tokens=1))
        run.to_the_end()
    run.add(submit("d", [7] * 250, max_tokens=1))
    run.to_the_end()
    for name, prompt in (("a last", BASE[:257]), ("b last", BASE[300:557])):
        run.add(submit(name, prompt, max_tokens=1))
        run.to_the_end()
    assert run.cached["a again"] == 256
    assert (run.cached["a last"], run.cached["b last"]) == (256, 128)


def test_kept_blocks_are_moved_when_a_request_grows_into_them() -> None:
    run = Served(submit("kept", BASE[:130], max_tokens=1), kv_blocks=32)
    run.to_the_end()
    for name in ("before", "grows"):
        run.add(submit(name, random_prompt(3, 10), max_tokens=246))
    run.step()
    run.cancel("before")
    run.to_the_end()
    copies = [copy for batch in run.batches for copy in batch.prefixes.copies]
    moved = [KvCopy(range(24 + step, 25 + step), range(15 - step, 16 - step)) for step in range(8)]
    assert copies == [KvCopy(range(8), range(24, 32)), *moved], "one block in each step"
    run.add(submit("again", BASE[:130], max_tokens=1))
    run.to_the_end()
    assert run.cached["again"] == PREFILL_CHUNK


@pytest.mark.parametrize(("block_tokens", "found"), [(16, 288), (48, 288), (64, 256), (512, 0)])
def test_what_is_kept_is_whole_blocks_of_any_size(block_tokens: int, found: int) -> None:
    kv = BlockManager(64)
    cache = PrefixCache(kv, block_tokens)
    first, then = (Sequence(submit(name, BASE[:300]), 0) for name in ("first", "then"))
    for sequence in (first, then):
        count = -(-300 // block_tokens)
        blocks = kv.place(sequence.request_id, count, count)
        assert blocks is not None
        sequence.blocks = blocks
        cache.start(sequence)
        sequence.reach(300)
        cache.keep(sequence)
        cache.check_invariants()
    assert then.cached == found


def test_what_finds_no_place_in_the_kv_cache_goes_to_host_memory_and_is_fetched() -> None:
    run = Served(submit("a", BASE[:300], max_tokens=1), kv_blocks=32, host_kv_blocks=64)
    run.to_the_end()
    run.add(submit("all", [9] * 500, max_tokens=1))
    run.to_the_end()
    assert any(copy.target.start < 0 for batch in run.batches for copy in batch.prefixes.copies)
    run.add(submit("b", BASE[:300], max_tokens=1))
    batch = run.step()
    assert (batch.prefixes.hits, batch.prefixes.fetched) == (288, 288)


def test_what_is_computed_sooner_is_not_fetched() -> None:
    run = Served(submit("a", BASE[:300], max_tokens=1), kv_blocks=32, host_kv_blocks=48)
    run.to_the_end()
    run.add(submit("all", [9] * 500, max_tokens=1))
    run.to_the_end()
    run.scheduler.weigh_fetches(fetch_rate=900.0, prefill_rate=1_000.0)
    run.add(submit("b", BASE[:300], max_tokens=1))
    assert run.step().prefixes.hits == 0


@pytest.mark.parametrize(
    ("fetch_rate", "prefill_rate", "pays"),
    [(None, None, True), (None, 1.0, True), (1.0, None, True), (2.0, 1.0, True), (1.0, 1.0, False), (1.0, 2.0, False)],
)
def test_a_fetch_pays_where_it_is_faster_or_nothing_is_known(
    fetch_rate: float | None, prefill_rate: float | None, *, pays: bool
) -> None:
    assert fetch_pays(fetch_rate, prefill_rate) is pays


def test_nothing_is_kept_where_that_is_switched_off() -> None:
    run = Served(submit("a", BASE[:300], max_tokens=1), enable_prefix_caching=False)
    run.to_the_end()
    run.add(submit("b", BASE[:300], max_tokens=1))
    run.to_the_end()
    assert run.cached["b"] == 0
    assert all(not batch.prefixes.copies for batch in run.batches)


def test_after_a_failure_of_the_engine_nothing_is_known() -> None:
    run = Served(submit("a", BASE[:300], max_tokens=9))
    run.step()
    run.scheduler.fail("out of memory")
    run.add(submit("b", BASE[:300], max_tokens=1))
    run.to_the_end()
    assert run.cached["b"] == 0


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.tuples(st.integers(0, 4), st.integers(1, 500), st.integers(1, 60))),
        st.tuples(st.just("go on"), st.tuples(st.integers(0, 20), st.integers(1, 40), st.integers(1, 60))),
        st.tuples(st.just("cancel"), st.integers(0, 20)),
        st.tuples(st.just("expire"), st.just(1.0)),
        st.tuples(st.just("steps"), st.integers(1, 8)),
    ),
    min_size=20,
    max_size=60,
)
SIZES = {
    "kv_blocks": st.integers(32, 80),
    "host_kv_blocks": st.sampled_from((0, 30)),
    "max_num_seqs": st.integers(1, 5),
}
CONTEXTS = {"context_blocks": st.integers(0, 60), "context_seconds": st.just(0.5)}


def paced(rows: int) -> DecodePace:
    """A pace at which so many rows of prompts may run beside decodes."""
    pace = DecodePace()
    pace.observe(0, 1, 1.0)
    pace.observe(10, 0, 10 * (limits().tbt_ratio - 1) / rows)
    return pace


@examples(40)
@given(EVENTS, st.fixed_dictionaries(SIZES | CONTEXTS), st.integers(1, 3), st.sampled_from((None, 8, 50)))
def test_whatever_comes_and_goes_every_row_finds_the_kv_that_it_would_have_computed(
    events: list[tuple[str, Any]], fields: dict[str, Any], at_once: int, rows: int | None
) -> None:
    run = Served(pace=None if rows is None else paced(rows), **fields)
    for what, value in events:
        match what:
            case "add":
                shared, length, more = value
                prompt = [*BASE[: shared * 100], *random_prompt(length, length)][:450]
                add(run, prompt, more, None if shared % 2 else f"talk {shared}")
            case "go on":
                before, length, more = value
                if str(before) in run.ended:
                    add(run, [*run.tokens[str(before)], *random_prompt(length, length)][:450], more, f"talk {before}")
            case "cancel":
                run.cancel(str(value))
            case "expire":
                run.take(run.scheduler.expire(value))
            case _:
                for _ in range(value):
                    if (run.under_way == at_once or not run.begin(at_once)) and run.under_way:
                        run.end()
    run.to_the_end()
    assert run.ended.keys() == run.requests.keys()
    assert run.scheduler.load().kv_blocks_used == 0


def add(run: Served, prompt: list[int], tokens: int, context_id: str | None) -> None:
    request = submit(str(len(run.requests)), prompt, max_tokens=min(tokens, 512 - len(prompt)), context_id=context_id)
    run.add(request)


@pytest.mark.parametrize(
    ("salt", "other", "found"), [(None, None, 112), ("a", "a", 112), ("a", "b", 0), ("a", None, 0), (None, "a", 0)]
)
def test_prompts_are_found_by_requests_of_their_salt_only(salt: str | None, other: str | None, found: int) -> None:
    run = Served(submit("first", BASE[:128], max_tokens=1, cache_salt=salt))
    run.to_the_end()
    run.add(submit("then", BASE[:128], max_tokens=2, cache_salt=other))
    run.to_the_end()
    assert run.cached["then"] == found
    assert run.tokens["then"][:129] == run.tokens["first"]


Pair = tuple[int, int]


def copied(*pairs: Pair) -> list[tuple[range, range]]:
    copies = PendingCopies()
    for source, target in pairs:
        copies.add(source, target)
    return [(copy.source, copy.target) for copy in copies.take()]


def test_blocks_that_follow_one_another_are_copied_together() -> None:
    assert copied((1, 11), (2, 12), (3, 13), (9, 14)) == [(range(1, 4), range(11, 14)), (range(9, 10), range(14, 15))]


@pytest.mark.parametrize(
    "pairs",
    [
        [(1, 12), (2, 11)],  # targets in another order
        [(1, 2), (2, 3)],  # what is copied here is what came there
        [(2, 1), (3, 2)],
        [(-1, 4), (0, 5)],  # one in host memory, the other not
        [(4, -1), (5, 0)],
    ],
)
def test_what_cannot_be_one_copy_is_two(pairs: list[Pair]) -> None:
    assert len(copied(*pairs)) == 2


def test_blocks_of_host_memory_are_copied_together() -> None:
    assert copied((-3, 1), (-2, 2)) == [(range(-3, -1), range(1, 3))]


def test_what_was_taken_is_not_due_again() -> None:
    copies = PendingCopies()
    copies.add(1, 2)
    assert len(copies.take()) == 1
    assert copies.take() == ()
