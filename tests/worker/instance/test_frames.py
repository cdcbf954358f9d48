"""What a worker sends of its requests: one frame a gateway, and large rows by themselves."""

import asyncio
from collections.abc import Callable

import pytest

from livescale.services.worker.instance.frames import FRAME_SECONDS, TokenFrames, WaitingRows
from livescale.services.worker.scheduling.outputs import TokenOutput
from livescale.shared.bus.contract import Bus
from livescale.shared.messages.requests import RequestLost, RequestsEnded, Running, TokenFrame, TokenLogprobs, Tokens
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import ENDED, TOKENS
from tests.clocks import LoopClock

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
