"""What can never run on a worker, and the sizes that leave room for a chunk."""

import pytest

from livescale.shared.messages.requests import Sampling
from tests.worker.requests import limits, submit


def test_what_fits_can_run() -> None:
    assert limits().why_never(submit("a", [1, 2, 3], max_tokens=4)) is None


def test_an_empty_prompt_can_never_run() -> None:
    assert "prompt is empty" in str(limits().why_never(submit("a", [], max_tokens=4)))


def test_more_tokens_than_a_request_may_have_can_never_run() -> None:
    room = limits()
    assert "max_model_len is" in str(room.why_never(submit("a", [1], max_tokens=room.max_model_len)))


def test_a_token_outside_the_vocabulary_is_named() -> None:
    room = limits()
    reason = room.why_never(submit("a", [1, room.vocab_size], max_tokens=1))
    assert reason == f"token id {room.vocab_size} is not in the vocabulary of {room.vocab_size}"


@pytest.mark.parametrize(
    "sampling",
    [Sampling(logit_bias=[(10_000, 1.0)]), Sampling(bad_words=[[1, 10_000]]), Sampling(allowed_token_ids=[10_000])],
)
def test_a_token_that_sampling_names_outside_the_vocabulary_can_never_run(sampling: Sampling) -> None:
    assert "token id 10000 is not in the vocabulary" in str(limits().why_never(submit("a", sampling=sampling)))


def test_a_step_must_hold_all_requests_and_a_chunk() -> None:
    with pytest.raises(ValueError, match="or prompts would starve"):
        limits(max_num_batched_tokens=64)


def test_blocks_are_counted_whole() -> None:
    room = limits()
    assert [room.blocks(count) for count in (0, 1, room.kv_block_tokens, room.kv_block_tokens + 1)] == [0, 1, 1, 2]
