"""A request as the scheduler sees it: every position is computed once and in order, however steps are cut."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.worker.scheduling.batch import PREFILL_CHUNK, PROMPT_CUT, LayerEntry
from livescale.services.worker.scheduling.sequence import CARRIED_LOGPROBS, LateKv, Sequence, order
from livescale.shared.messages.disaggregation import TakeOver
from livescale.shared.messages.requests import PRIORITY_ARRIVALS, PromptLogprobs, Sampling, TokenLogprobs
from tests.worker.requests import submit


def sequence(prompt: int = 5, generated: int = 0, arrival: int = 0, **fields: Any) -> Sequence:
    tokens = list(range(100, 100 + generated))
    made = Sequence(submit("a", range(prompt), generated=tokens, **{"max_tokens": 50, **fields}), arrival)
    made.blocks = range(100)
    return made


@given(st.integers(1, 400), st.integers(0, 5), st.lists(st.integers(PROMPT_CUT, 300), min_size=1))
def test_steps_of_any_budgets_compute_every_position_once_and_sample_after_the_last(
    prompt: int, generated: int, budgets: list[int]
) -> None:
    one, sampled = sequence(prompt, generated), 0
    for turn in range(200):
        budget = budgets[turn % len(budgets)]
        chunks = list(one.chunks(budget, PROMPT_CUT))
        assert sum(len(chunk.tokens) for chunk in chunks) <= budget
        for chunk in chunks:
            assert (chunk.start, list(chunk.tokens)) == (one.computed, one.tokens[chunk.start : chunk.stop])
            assert chunk.decode == (chunk.start >= prompt)
            assert chunk.decode or (chunk.stop == prompt or chunk.stop % PROMPT_CUT == 0)
            one.reach(chunk.stop)
            sampled += chunk.sampling is not None
        if sampled:
            break
    assert (sampled, one.left, one.waiting_tokens) == (1, 0, 0)


@given(st.integers(1, 400), st.integers(0, 200), st.integers(0, 600), st.sampled_from([PREFILL_CHUNK, 300, 512]))
def test_the_rest_is_all_that_is_not_computed(prompt: int, generated: int, computed: int, most_rows: int) -> None:
    one = sequence(prompt, generated)
    one.computed = min(computed, len(one.tokens))
    if one.computed < prompt:
        one.computed = one.computed // PROMPT_CUT * PROMPT_CUT
    rest = list(one.rest(most_rows))
    assert [token for chunk in rest for token in chunk.tokens] == one.tokens[one.computed :]
    assert all(len(chunk.tokens) <= PREFILL_CHUNK for chunk in rest if not chunk.decode)


def test_a_prompt_whose_rows_see_each_other_is_computed_at_once_or_not_yet() -> None:
    whole = Sequence(submit("a", range(300)), 0, whole=True)
    assert list(whole.chunks(299)) == []
    [chunk] = whole.chunks(300)
    assert (chunk.start, chunk.stop, chunk.whole) == (0, 300, True)


def test_a_sequence_decodes_while_only_its_last_token_is_not_computed() -> None:
    one = sequence(5)
    assert not one.decodes
    one.reach(5)
    assert one.append(7) is None
    assert one.decodes
    assert (one.decode().tokens, one.decode().start) == ((7,), 5)


@pytest.mark.parametrize(
    ("stops", "most", "tokens", "ends"),
    [([9], 5, [7, 9], "stop"), ([9], 2, [7, 8], "length"), ([9], 2, [7, 9], "stop"), ([], 3, [7, 9, 9], "length")],
)
def test_a_request_ends_with_a_stop_token_or_at_its_length(
    stops: list[int], most: int, tokens: list[int], ends: str
) -> None:
    one = sequence(stop_token_ids=stops, max_tokens=most)
    assert [one.append(token) for token in tokens] == [None] * (len(tokens) - 1) + [ends]


def test_stops_are_forbidden_before_the_least_number_of_tokens() -> None:
    one = sequence(stop_token_ids=[9], min_tokens=1)
    for forbidden in ((9,), ()):
        [*_, last] = one.chunks(100)
        assert last.sampling is not None
        assert (last.sampling.forbidden, last.sampling.stops) == (forbidden, (9,))
        one.reach(last.stop)
        one.append(7)


def test_one_that_lost_its_kv_begins_anew_with_the_tokens_that_it_has() -> None:
    one = sequence(5)
    one.reach(5)
    one.append(7)
    one.entry, one.awaits_take_over = LayerEntry(1, 5, memoryview(b"")), True
    one.preempt()
    assert (one.computed, one.blocks, one.entry, one.preempted, one.is_waiting) == (0, range(0), None, True, False)
    assert one.tokens == [*range(5), 7]


def test_nothing_is_decoded_before_late_kv_has_come_and_then_it_is_laid_down_once() -> None:
    one = sequence(20)
    one.late = LateKv(layers=2, stop=20)
    assert not one.is_waiting
    one.reach(20)
    assert one.is_waiting
    assert one.lay_down(16) is None
    one.late.data = memoryview(b"kv")
    assert not one.is_waiting
    laid = one.lay_down(16)
    assert laid is not None
    assert (laid.blocks, laid.layers) == (range(2), 2)
    assert one.lay_down(16) is None


def test_one_that_is_to_be_decoded_elsewhere_waits_after_its_first_token() -> None:
    one = sequence(5)
    one.awaits_take_over = True
    assert not one.is_waiting
    one.append(7)
    assert one.is_waiting
    elsewhere = sequence(5)
    elsewhere.take_over(TakeOver(prefill="p", ticket=1, request_id="a", generated=[7]))
    assert (elsewhere.tokens, elsewhere.decodes) == (one.tokens, True)


def test_one_that_is_decoded_meanwhile_does_not_wait_and_what_was_generated_then_is_computed_elsewhere() -> None:
    one = sequence(5)
    one.awaits_take_over = one.decodes_meanwhile = True
    one.append(7)
    assert not one.is_waiting
    one.append(8)
    elsewhere = sequence(5)
    elsewhere.take_over(TakeOver(prefill="p", ticket=1, request_id="a", generated=[7, 8]))
    assert [(chunk.start, chunk.stop, chunk.decode) for chunk in elsewhere.chunks(100)] == [(5, 7, True)]
    one.preempt()
    assert (one.awaits_take_over, one.decodes_meanwhile) == (False, False)


def test_kv_of_which_the_first_layers_are_late_is_not_present() -> None:
    one = sequence(20)
    one.reach(20)
    assert one.present == 20
    one.late = LateKv(layers=2, stop=20)
    assert one.present == 0


def test_another_worker_goes_on_with_all_tokens_and_the_last_log_probabilities() -> None:
    one = sequence(5, sampling=Sampling(logprobs=0), prompt_logprobs=PromptLogprobs(), max_tokens=5_000)
    one.scored(0, [TokenLogprobs(-float(place)) for place in range(1, 5)])
    count = CARRIED_LOGPROBS + 3
    for token in range(count):
        one.append(token, TokenLogprobs(-float(token)))
    carried = one.as_request()
    assert carried.generated == list(range(count))
    assert [told.chosen for told in carried.logprobs] == [-float(token) for token in range(3, count)]
    assert carried.prompt_logprobs is not None
    assert len(carried.prompt_logprobs.told) == 4
    again = Sequence(carried, 0)
    assert (again.tokens, again.generated, again.has_sampled) == (one.tokens, count, False)


def test_prompts_are_scored_chunk_by_chunk_until_a_token_was_generated() -> None:
    one = sequence(140, prompt_logprobs=PromptLogprobs(top=2))
    asked = [chunk.scoring for chunk in one.chunks(200)]
    assert [token for scoring in asked if scoring for token in scoring.following] == list(range(1, 140))
    assert {scoring.top for scoring in asked if scoring} == {2}
    resumed = sequence(140, 1, prompt_logprobs=PromptLogprobs(top=2))
    assert all(chunk.scoring is None for chunk in resumed.chunks(200))


def test_lower_priority_numbers_come_first_within_bounds_and_then_earlier_arrivals() -> None:
    line = [sequence(arrival=3), sequence(arrival=1), sequence(arrival=2, priority=-1)]
    assert [one.arrival for one in sorted(line, key=order)] == [2, 1, 3]
    late = sequence(arrival=3 + PRIORITY_ARRIVALS, priority=-1)
    assert sorted([late, line[0]], key=order) == [line[0], late]
