"""Tokens of short steps leave together; the first, the last and what is large leave at once."""

import pytest

from livescale.services.worker.instance.waiting_rows import FRAME_SECONDS, WaitingRows
from livescale.shared.messages.requests import TokenLogprobs, Tokens

NOW = 100.0


def token(index: int, id: str = "a", **more: object) -> Tokens:
    return Tokens(request_id=id, index=index, token_ids=[7], **more)  # type: ignore[arg-type]


def leaving(waiting: WaitingRows, now: float) -> dict[str, list[int]]:
    return {gateway: [row.index for row in rows] for gateway, rows in waiting.take_due(now)}


def test_a_token_leaves_at_once_where_nothing_left_within_the_time() -> None:
    waiting = WaitingRows()
    waiting.add("g-0", token(3))
    assert leaving(waiting, NOW) == {"g-0": [3]}
    waiting.add("g-0", token(4))
    assert leaving(waiting, NOW + FRAME_SECONDS) == {"g-0": [4]}
    assert not waiting


def test_tokens_that_follow_sooner_wait_and_leave_together_in_order() -> None:
    waiting = WaitingRows()
    waiting.add("g-0", token(3))
    assert leaving(waiting, NOW) == {"g-0": [3]}
    for number in range(1, 4):
        waiting.add("g-0", token(3 + number))
        assert leaving(waiting, NOW + number * FRAME_SECONDS / 4) == {}
    assert len(waiting) == 3
    waiting.add("g-0", token(7))
    assert leaving(waiting, NOW + FRAME_SECONDS) == {"g-0": [4, 5, 6, 7]}


def test_gateways_do_not_wait_for_each_other() -> None:
    waiting = WaitingRows()
    waiting.add("g-0", token(3))
    assert leaving(waiting, NOW) == {"g-0": [3]}
    waiting.add("g-0", token(4))
    waiting.add("g-1", token(3, "b"))
    assert leaving(waiting, NOW) == {"g-1": [3]}


@pytest.mark.parametrize(
    "urgent",
    [
        token(0, "b"),
        token(5, finish_reason="length"),
        token(5, logprobs=[TokenLogprobs(-1.0)]),
        Tokens(request_id="b", index=9, token_ids=[], finish_reason="error", error="it failed"),
        Tokens(request_id="b", index=9, token_ids=[]),
    ],
    ids=["first", "last", "with logprobs", "error", "no token"],
)
def test_what_must_not_wait_takes_along_what_waits_for_the_same_gateway(urgent: Tokens) -> None:
    waiting = WaitingRows()
    waiting.add("g-0", token(3))
    assert leaving(waiting, NOW) == {"g-0": [3]}
    waiting.add("g-0", token(4))
    waiting.add("g-0", urgent)
    assert leaving(waiting, NOW) == {"g-0": [4, urgent.index]}
    waiting.add("g-0", token(5))
    assert leaving(waiting, NOW) == {}


def test_all_can_be_taken_before_their_time() -> None:
    waiting = WaitingRows()
    waiting.add("g-0", token(3))
    assert leaving(waiting, NOW) == {"g-0": [3]}
    waiting.add("g-0", token(4))
    assert dict(waiting.take_all(NOW)) == {"g-0": [token(4)]}
    assert not waiting
    assert dict(waiting.take_all(NOW)) == {}
