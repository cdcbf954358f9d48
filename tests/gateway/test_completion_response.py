"""Which of a prompt's choices a client gets that asks for the best of several."""

from hypothesis import given
from hypothesis import strategies as st

from livescale.services.gateway.completion_response import likeliest
from livescale.services.gateway.output import TextPiece, WholeChoice
from livescale.shared.messages.requests import TokenLogprobs


def choice_of(logprobs: list[float]) -> WholeChoice:
    choice = WholeChoice([1])
    choice.add(TextPiece("a", tuple(range(len(logprobs))), "stop", logprobs=tuple(map(TokenLogprobs, logprobs))))
    return choice


@given(st.lists(st.lists(st.floats(-9, 0), min_size=1, max_size=3), min_size=1, max_size=6), st.data())
def test_the_likeliest_a_token_are_answered_and_the_first_of_equals(
    made: list[list[float]], data: st.DataObject
) -> None:
    choices = [choice_of(logprobs) for logprobs in made]
    n = data.draw(st.integers(1, len(choices)))
    best = likeliest(choices, n)
    assert len(best) == n
    places = [next(place for place, one in enumerate(choices) if one is kept) for kept in best]
    assert len(set(places)) == n
    if n == len(choices):
        assert places == list(range(n))  # nothing is chosen, so nothing is moved
        return
    ranked = [(-choices[place].mean_logprob, place) for place in range(len(choices))]
    assert places == [place for _, place in sorted(ranked)[:n]]


def test_a_long_answer_is_not_worse_for_being_long() -> None:
    long, short = choice_of([-1.0] * 5), choice_of([-2.0])
    assert likeliest([short, long], 1) == [long]


def test_tokens_of_an_echoed_prompt_do_not_count() -> None:
    echoed = WholeChoice([1, 2])
    told = (None, TokenLogprobs(-50.0), TokenLogprobs(-1.0))
    echoed.add(TextPiece("abc", (3,), "stop", logprobs=told, echoed=(1, 2)))
    assert likeliest([choice_of([-2.0]), echoed], 1) == [echoed]
