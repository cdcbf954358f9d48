"""Every token once and in order, whatever the bus does to frames."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from livescale.services.gateway.progress import Fresh, Gap, TokenSequence, resumed
from livescale.shared.messages.requests import FinishReason, Submit, TokenLogprobs, Tokens


def row(index: int, *ids: int, finish: FinishReason | None = None) -> Tokens:
    return Tokens(request_id="req-1", index=index, token_ids=list(ids), finish_reason=finish)


def test_rows_in_order_are_fresh() -> None:
    sequence = TokenSequence()
    assert sequence.accept(row(0, 10)) == Fresh((10,))
    assert sequence.accept(row(1, 11, 12, finish="stop")) == Fresh((11, 12), "stop")


def test_what_was_had_before_is_dropped_and_what_is_new_in_it_taken() -> None:
    sequence = TokenSequence(2)
    assert sequence.accept(row(0, 10, 11)) is None
    assert sequence.accept(row(1, 11, 12)) == Fresh((12,))


def test_log_probabilities_come_with_their_tokens() -> None:
    told = [TokenLogprobs(-1.0), TokenLogprobs(-2.0)]
    late = structs.replace(row(1, 11, 12), logprobs=told)
    assert TokenSequence(2).accept(late) == Fresh((12,), logprobs=(told[1],))


def test_a_gap_is_named_until_it_is_filled() -> None:
    sequence = TokenSequence()
    assert sequence.accept(row(1, 11)) == Gap(0)
    assert sequence.accept(row(2, 12, finish="length")) == Gap(0)
    assert sequence.accept(row(0, 10, 11, 12, finish="length")) == Fresh((10, 11, 12), "length")


def test_an_end_without_tokens_ends_once() -> None:
    sequence = TokenSequence(1)
    assert sequence.accept(row(1, finish="cancelled")) == Fresh((), "cancelled")
    assert sequence.accept(row(1, 11)) is None
    assert sequence.accept(row(1, finish="cancelled")) is None


def test_a_request_that_was_lost_follows_no_other_any_more() -> None:
    lost = Submit(request_id="req-1-p1", model="m", gateway="g", prompt=[1, 2], deadline=9.0, follows="req-1-p0")
    again = resumed(lost, [7], 1, "v")
    assert (again.request_id, again.generated, again.follows) == ("req-1-p1-2", [7], None)


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(1, 4)), max_size=60))
def test_any_loss_and_repetition_ends_in_the_whole_once_everything_was_sent(arriving: list[tuple[int, int]]) -> None:
    length, sequence, got = 12, TokenSequence(), list[int]()
    for index, size in [*arriving, *((index, 1) for index in range(length))]:
        stop = min(index + size, length)
        new = sequence.accept(row(index, *range(index, stop), finish="length" if stop == length else None))
        if isinstance(new, Gap):
            assert new.index == len(got) < index
        elif new is not None:
            got.extend(new.token_ids)
            assert (new.finish_reason is not None) == (len(got) == length)
    assert got == list(range(length))
