"""What a gateway that lost a frame is told again."""

from collections.abc import Iterable

from msgspec.structs import replace

from livescale.services.worker.scheduling.outputs import TokenHistory, earlier_tokens
from livescale.services.worker.scheduling.sequence import CARRIED_LOGPROBS
from livescale.shared.messages.requests import FinishReason, PromptLogprobs, Sampling, TokenLogprobs, Tokens
from tests.worker.serving import submit


def row(index: int, tokens: Iterable[int], finish: FinishReason | None = None, cached: int = 0) -> Tokens:
    return Tokens(request_id="a", index=index, token_ids=list(tokens), finish_reason=finish, cached_tokens=cached)


def test_all_rows_of_a_request_come_again_as_one_from_any_token_on() -> None:
    history = TokenHistory()
    for said in (row(0, [5, 6]), row(2, [7], cached=128), row(3, [8])):
        history.record(said)
    assert history.since("a", 0) == row(0, [5, 6, 7, 8])
    assert history.since("a", 2) == row(2, [7, 8])
    history.record(row(4, [9], "length", cached=128))
    assert history.since("a", 1) == row(1, [6, 7, 8, 9], "length", cached=128)


def test_what_was_told_is_not_changed_by_what_comes_later() -> None:
    history, first = TokenHistory(), row(0, [5])
    history.record(first)
    told = history.since("a", 0)
    history.record(row(1, [6]))
    assert first == told == row(0, [5])


def told(count: int) -> list[TokenLogprobs]:
    return [TokenLogprobs(-float(number), [(number, -0.5)]) for number in range(count)]


def test_log_probabilities_come_again_with_their_tokens() -> None:
    history, all_told = TokenHistory(), told(4)
    history.record(replace(row(0, [5, 6]), logprobs=all_told[:2]))
    history.record(replace(row(2, [7, 8]), logprobs=all_told[2:]))
    assert history.since("a", 1) == replace(row(1, [6, 7, 8]), logprobs=all_told[1:])


def test_what_another_worker_sent_is_known_as_far_as_its_log_probabilities_came_along() -> None:
    request = submit("a", generated=[5, 6, 7])
    assert earlier_tokens(request) == row(0, [5, 6, 7])
    asked = replace(request, sampling=Sampling(logprobs=1), logprobs=told(2))
    assert earlier_tokens(asked) == replace(row(1, [6, 7]), logprobs=told(2))


def test_the_log_probabilities_of_a_prompt_come_again_with_its_first_token() -> None:
    history = TokenHistory()
    history.record(replace(row(0, [5]), prompt_logprobs=told(3)))
    history.record(row(1, [6]))
    assert history.since("a", 0) == replace(row(0, [5, 6]), prompt_logprobs=told(3))
    assert history.since("a", 1) == row(1, [6])
    request = submit("a", generated=[5], prompt_logprobs=PromptLogprobs(told=told(3)))
    assert earlier_tokens(request) == replace(row(0, [5]), prompt_logprobs=told(3))
    assert earlier_tokens(replace(request, generated=[])) == row(0, [])


def test_of_tokens_with_log_probabilities_the_last_are_kept() -> None:
    history, count = TokenHistory(), 3 * CARRIED_LOGPROBS
    history.record(replace(row(0, [5]), logprobs=told(1), prompt_logprobs=told(3)))
    for number in range(1, count):
        history.record(replace(row(number, [number]), logprobs=told(1)))
    assert history.since("a", 0) is None
    index = count - CARRIED_LOGPROBS
    assert history.since("a", index) == replace(row(index, range(index, count)), logprobs=told(1) * CARRIED_LOGPROBS)


def test_tokens_before_the_first_that_was_said_here_are_not_known() -> None:
    history = TokenHistory()
    history.record(row(3, [8]))
    assert history.since("a", 2) is None
    assert history.since("b", 0) is None


def test_the_last_requests_that_ended_are_kept() -> None:
    history = TokenHistory(kept=1)
    history.record(row(0, [5], "stop"))
    assert history.ended() == ["a"]
    history.record(Tokens(request_id="b", index=0, token_ids=[1], finish_reason="stop"))
    assert history.ended() == ["b"]
    assert history.since("a", 0) is None


def test_nothing_is_left_of_one_that_is_another_workers() -> None:
    history = TokenHistory()
    history.record(row(0, [5]))
    history.forget("a")
    assert history.since("a", 0) is None
