"""What a worker sends of its requests: one frame a gateway, large rows by themselves, and again what was lost."""

import asyncio
from collections.abc import Callable, Iterable

import pytest
from msgspec.structs import replace

from livescale.services.worker.instance.frames import (
    FRAME_SECONDS,
    TokenFrames,
    TokenHistory,
    WaitingRows,
    earlier_tokens,
)
from livescale.services.worker.scheduling.batch import TokenOutput
from livescale.services.worker.scheduling.sequence import CARRIED_LOGPROBS
from livescale.shared.bus.contract import Bus
from livescale.shared.messages.requests import (
    FinishReason,
    PromptLogprobs,
    Replay,
    RequestLost,
    RequestsEnded,
    Running,
    Sampling,
    TokenFrame,
    TokenLogprobs,
    Tokens,
)
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import ENDED, TOKENS
from tests.clocks import LoopClock
from tests.worker.requests import submit

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


EPOCH = 1_000_000.0


def row(id: str, gateway: str = "g-0", **more: object) -> TokenOutput:
    return TokenOutput(gateway, Tokens(request_id=id, index=0, token_ids=[1], **more))  # type: ignore[arg-type]


def heard(send: Callable[[Bus], object]) -> list[tuple[str, TokenFrame | RequestsEnded]]:
    """Everything that two gateways and a router hear, with the hole of its subject."""
    told: list[tuple[str, TokenFrame | RequestsEnded]] = []

    async def main() -> None:
        broker = LocalBroker(LoopClock(EPOCH))
        worker, other = broker.connect(), broker.connect()
        tokens, ended = await other.subscribe(TOKENS), await other.subscribe(ENDED)
        send(worker)
        await worker.close()
        await other.close()
        async for received in tokens:
            assert isinstance(received.message, TokenFrame)
            told.append((received.holes["gateway"], received.message))
        async for gone in ended:
            told.append((gone.holes["worker"], gone.message))

    virtual_time.run(main())
    return told


def test_a_step_is_one_frame_for_each_gateway_and_steps_are_counted() -> None:
    def send(bus: Bus) -> None:
        frames = TokenFrames("w-0", bus, LoopClock(EPOCH))
        frames.version = "v"
        sent = frames.send_all([row("a"), row("b", "g-1"), row("c")])
        assert [one.request_id for one in sent] == ["a", "b", "c"]
        frames.send_all([row("a")])

    told = [(hole, frame) for hole, frame in heard(send) if isinstance(frame, TokenFrame)]
    assert [(hole, [one.request_id for one in frame.rows]) for hole, frame in told] == [
        ("g-0", ["a", "c"]),
        ("g-1", ["b"]),
        ("g-0", ["a"]),
    ]
    assert [frame.step for _, frame in told] == [1, 2, 3]
    assert {(frame.worker, frame.version) for _, frame in told} == {("w-0", "v")}


def test_tokens_that_are_sent_again_say_which_version_made_them_though_the_worker_serves_another() -> None:
    def send(bus: Bus) -> None:
        frames = TokenFrames("w-0", bus, LoopClock(EPOCH))
        frames.version = "v"
        frames.send_all([row("a", finish_reason="length")])
        frames.version = "another"
        frames.send_all([row("b")])
        assert frames.send_again(Replay(request_id="a", index=0, gateway="g-0"))

    told = [frame for _, frame in heard(send) if isinstance(frame, TokenFrame)]
    assert [frame.version for frame in told] == ["v", "another", "v"]


def test_what_may_be_half_of_what_the_bus_takes_is_sent_by_itself() -> None:
    vector = [TokenLogprobs(0.0, pooled=b"\0" * 8)]
    outputs = [row("a"), row("scored", prompt_logprobs=[TokenLogprobs(-1.0)]), row("b"), row("pooled", logprobs=vector)]
    told = heard(lambda bus: TokenFrames("w-0", bus, LoopClock(EPOCH)).send_all(outputs))
    frames = [[one.request_id for one in frame.rows] for _, frame in told if isinstance(frame, TokenFrame)]
    assert sorted(frames) == [["a", "b"], ["pooled"], ["scored"]]


def test_a_router_hears_which_requests_left_and_how_many_tokens_they_have() -> None:
    [(worker, ended)] = heard(lambda bus: TokenFrames("w-0", bus, LoopClock(EPOCH)).tell_ended(["a", "b"], (3, 4)))
    assert (worker, ended) == ("w-0", RequestsEnded(worker="w-0", request_ids=["a", "b"], tokens=[3, 4]))


def later(index: int) -> TokenOutput:
    return TokenOutput("g-0", Tokens(request_id="a", index=index, token_ids=[1]))


async def frames_heard(act: Callable[[TokenFrames], object]) -> list[TokenFrame | RequestLost]:
    """What a gateway has heard by the time that tokens wait at most, once `act` is done with frames."""
    broker = LocalBroker(LoopClock(EPOCH))
    worker, gateway = broker.connect(), broker.connect()
    arriving = await gateway.subscribe(TOKENS, gateway="g-0")
    frames = TokenFrames("w-0", worker, LoopClock(EPOCH))
    for index in range(1, 4):
        frames.send_all([later(index)])
    act(frames)
    await asyncio.sleep(2 * FRAME_SECONDS)
    await worker.close()
    await gateway.close()
    return [received.message async for received in arriving]


def test_tokens_of_steps_that_follow_at_once_leave_together_though_no_step_comes_any_more() -> None:
    told = virtual_time.run(frames_heard(lambda frames: None))
    assert [[row.index for row in frame.rows] for frame in told if isinstance(frame, TokenFrame)] == [[1], [2, 3]]


def test_tokens_that_wait_leave_before_their_request_is_said_to_be_lost() -> None:
    lost = Running(request_id="a", gateway="g-0", tokens=4)
    told = virtual_time.run(frames_heard(lambda frames: frames.tell_lost([lost], "it was stopped")))
    assert [type(one) for one in told] == [TokenFrame, TokenFrame, RequestLost]


def said(index: int, tokens: Iterable[int], finish: FinishReason | None = None, cached: int = 0) -> Tokens:
    return Tokens(request_id="a", index=index, token_ids=list(tokens), finish_reason=finish, cached_tokens=cached)


def test_all_rows_of_a_request_come_again_as_one_from_any_token_on() -> None:
    history = TokenHistory()
    for one in (said(0, [5, 6]), said(2, [7], cached=128), said(3, [8])):
        history.record(one)
    assert history.since("a", 0) == said(0, [5, 6, 7, 8])
    assert history.since("a", 2) == said(2, [7, 8])
    history.record(said(4, [9], "length", cached=128))
    assert history.since("a", 1) == said(1, [6, 7, 8, 9], "length", cached=128)


def test_what_was_told_is_not_changed_by_what_comes_later() -> None:
    history, first = TokenHistory(), said(0, [5])
    history.record(first)
    told = history.since("a", 0)
    history.record(said(1, [6]))
    assert first == told == said(0, [5])


def told(count: int) -> list[TokenLogprobs]:
    return [TokenLogprobs(-float(number), [(number, -0.5)]) for number in range(count)]


def test_log_probabilities_come_again_with_their_tokens() -> None:
    history, all_told = TokenHistory(), told(4)
    history.record(replace(said(0, [5, 6]), logprobs=all_told[:2]))
    history.record(replace(said(2, [7, 8]), logprobs=all_told[2:]))
    assert history.since("a", 1) == replace(said(1, [6, 7, 8]), logprobs=all_told[1:])


def test_what_another_worker_sent_is_known_as_far_as_its_log_probabilities_came_along() -> None:
    request = submit("a", generated=[5, 6, 7])
    assert earlier_tokens(request) == said(0, [5, 6, 7])
    asked = replace(request, sampling=Sampling(logprobs=1), logprobs=told(2))
    assert earlier_tokens(asked) == replace(said(1, [6, 7]), logprobs=told(2))


def test_the_log_probabilities_of_a_prompt_come_again_with_its_first_token() -> None:
    history = TokenHistory()
    history.record(replace(said(0, [5]), prompt_logprobs=told(3)))
    history.record(said(1, [6]))
    assert history.since("a", 0) == replace(said(0, [5, 6]), prompt_logprobs=told(3))
    assert history.since("a", 1) == said(1, [6])
    request = submit("a", generated=[5], prompt_logprobs=PromptLogprobs(told=told(3)))
    assert earlier_tokens(request) == replace(said(0, [5]), prompt_logprobs=told(3))
    assert earlier_tokens(replace(request, generated=[])) == said(0, [])


def test_of_tokens_with_log_probabilities_the_last_are_kept() -> None:
    history, count = TokenHistory(), 3 * CARRIED_LOGPROBS
    history.record(replace(said(0, [5]), logprobs=told(1), prompt_logprobs=told(3)))
    for number in range(1, count):
        history.record(replace(said(number, [number]), logprobs=told(1)))
    assert history.since("a", 0) is None
    index = count - CARRIED_LOGPROBS
    assert history.since("a", index) == replace(said(index, range(index, count)), logprobs=told(1) * CARRIED_LOGPROBS)


def test_tokens_before_the_first_that_was_said_here_are_not_known() -> None:
    history = TokenHistory()
    history.record(said(3, [8]))
    assert history.since("a", 2) is None
    assert history.since("b", 0) is None


def test_the_last_requests_that_ended_are_kept() -> None:
    history = TokenHistory(kept=1)
    history.record(said(0, [5], "stop"))
    assert history.ended() == ["a"]
    history.record(Tokens(request_id="b", index=0, token_ids=[1], finish_reason="stop"))
    assert history.ended() == ["b"]
    assert history.since("a", 0) is None


def test_nothing_is_left_of_one_that_is_another_workers() -> None:
    history = TokenHistory()
    history.record(said(0, [5]))
    history.forget("a")
    assert history.since("a", 0) is None
