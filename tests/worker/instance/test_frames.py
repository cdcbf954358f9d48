"""What a worker sends of its requests: one frame a gateway, and large rows by themselves."""

from collections.abc import Callable

from livescale.services.worker.instance.frames import TokenFrames
from livescale.services.worker.scheduling.outputs import TokenOutput
from livescale.shared.bus.contract import Bus
from livescale.shared.messages.requests import RequestsEnded, TokenFrame, TokenLogprobs, Tokens
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import ENDED, TOKENS
from tests.clocks import LoopClock


def row(id: str, gateway: str = "g-0", **more: object) -> TokenOutput:
    return TokenOutput(gateway, Tokens(request_id=id, index=0, token_ids=[1], **more))  # type: ignore[arg-type]


def heard(send: Callable[[Bus], object]) -> list[tuple[str, TokenFrame | RequestsEnded]]:
    """Everything that two gateways and a router hear, with the hole of its subject."""
    told: list[tuple[str, TokenFrame | RequestsEnded]] = []

    async def main() -> None:
        broker = LocalBroker(LoopClock(epoch=1_000_000.0))
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
        frames = TokenFrames("w-0", bus)
        frames.version = "v"
        sent = frames.send_all([row("a"), row("b", "g-1"), row("c")])
        assert [one.request_id for one in sent] == ["a", "c", "b"]
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
    told = heard(lambda bus: TokenFrames("w-0", bus).send_all(outputs))
    frames = [[one.request_id for one in frame.rows] for _, frame in told if isinstance(frame, TokenFrame)]
    assert sorted(frames) == [["a", "b"], ["pooled"], ["scored"]]


def test_a_router_hears_which_requests_left_and_how_many_tokens_they_have() -> None:
    [(worker, ended)] = heard(lambda bus: TokenFrames("w-0", bus).tell_ended(["a", "b"], (3, 4)))
    assert (worker, ended) == ("w-0", RequestsEnded(worker="w-0", request_ids=["a", "b"], tokens=[3, 4]))
