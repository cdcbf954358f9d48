"""Frames get lost, workers and routers die: each request's stream has every token once."""

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge
from structlog.testing import capture_logs

from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.metrics import GatewayMetrics
from livescale.services.gateway.streams import HeldRequests, RequestStreams
from livescale.shared.bus.contract import Ack, Context, Endpoint, Refusal, ServiceInfo
from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.messages.requests import Replay, Submit, TokenFrame, Tokens
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import LEASE, REPLAY, TOKENS
from tests.clocks import LoopClock
from tests.gateway.asking import ASK, WHOLE, dies, only_stream, taken_over, takes_office, token_ids
from tests.gateway.conftest import ServedGateway, eventually, serve_gateway
from tests.gateway.reports import WORKER


async def test_a_lost_frame_is_sent_again(served: ServedGateway) -> None:
    served.cluster.lose_frame = lambda position: position in (0, 4)
    assert await token_ids(served) == WHOLE
    assert [replay.index for replay in served.cluster.replayed] == [0, 4]


async def test_a_lost_last_frame_is_asked_for_after_a_silence(
    served: ServedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("livescale.services.gateway.request_stream.SILENCE_SECONDS", 0.05)
    served.cluster.lose_frame = lambda position: position == 8
    assert await token_ids(served) == WHOLE


async def test_a_worker_that_has_forgotten_the_request_is_left(served: ServedGateway) -> None:
    served.cluster.lose_frame = lambda position: position == 3 and len(served.cluster.submitted) == 1
    served.cluster.replay_refusal = Refusal(404, "no such request")
    assert await token_ids(served) == WHOLE
    first, second = served.cluster.submitted
    assert second.generated == WHOLE[:3]
    assert first.request_id in served.cluster.cancelled


async def test_a_worker_that_is_missed_twice_is_left(served: ServedGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first time it may only be about to reconnect. It dies before the router knows of it."""
    monkeypatch.setattr("livescale.services.gateway.request_stream.SILENCE_SECONDS", 0.2)
    never = asyncio.get_running_loop().create_future()
    sent = list[str]()

    def watch(subject: str) -> bool:
        sent.append(subject)
        return False

    served.broker.lose = watch
    served.cluster.worker = "worker-9"  # answers nothing

    def before(request: Submit, position: int) -> "asyncio.Future[None] | None":
        if request.generated:
            served.cluster.worker = WORKER
            return None
        return never if position == 3 else None

    served.cluster.before = before
    assert await token_ids(served) == WHOLE
    assert [one.generated for one in served.cluster.submitted] == [[], WHOLE[:3]]
    assert sent.count("worker.worker-9.replay") == 2


async def test_tokens_that_are_never_resent_are_generated_elsewhere(served: ServedGateway) -> None:
    served.cluster.lose_frame = lambda position: position == 3 and len(served.cluster.submitted) == 1

    def after_what_was_missed(request: Submit, position: int) -> asyncio.Future[None] | None:
        missed = 0 if request.generated else position - 4
        return asyncio.ensure_future(eventually(lambda: len(served.cluster.replayed) >= missed))

    served.cluster.before = after_what_was_missed
    served.cluster.resends = False
    assert await token_ids(served) == WHOLE
    assert [replay.index for replay in served.cluster.replayed] == [3, 3, 3]
    assert served.cluster.submitted[1].generated == WHOLE[:3]


async def test_tokens_that_nobody_waits_for_are_stopped_at_their_source(served: ServedGateway) -> None:
    row = Tokens(request_id="req-of-before", index=5, token_ids=[65])
    served.cluster.bus.publish(TOKENS, TokenFrame(worker="worker-1", step=1, rows=[row]), gateway="gateway-0")
    await eventually(lambda: served.cluster.cancelled == ["req-of-before"])


async def test_requests_beyond_the_limit_are_refused_at_once(checkpoint: Path) -> None:
    async with serve_gateway(checkpoint, max_requests=1) as served:
        never = asyncio.get_running_loop().create_future()
        served.cluster.before = lambda request, position: never
        first = asyncio.create_task(token_ids(served))
        await eventually(lambda: len(served.cluster.submitted) == 1)
        status, body = await served.post("/v1/completions", ASK)
        assert (status, body["error"]["code"]) == (429, "queue_full")
        first.cancel()
        await eventually(lambda: len(served.cluster.cancelled) == 1)
        served.cluster.before = lambda request, position: None
        assert await token_ids(served) == WHOLE


async def test_what_no_worker_has_begun_is_submitted_again_to_a_new_router(served: ServedGateway) -> None:
    held = served.cluster.hang_before(0)
    asking = asyncio.create_task(token_ids(served))
    await eventually(lambda: served.cluster.hanging)
    id = served.cluster.submitted[0].request_id
    takes_office(served, epoch=5)
    await eventually(lambda: served.cluster.known == [id])
    takes_office(served, epoch=5)  # the next heartbeat of the same one
    takes_office(served, epoch=4)  # one that had been stopped, and wakes
    takes_office(served, epoch=7)
    await eventually(lambda: served.cluster.known == [id, id])
    held.set_result(None)
    assert await asking == WHOLE
    assert len(served.cluster.submitted) == 1


async def test_what_a_worker_has_begun_is_left_alone_when_a_router_takes_office(served: ServedGateway) -> None:
    held = served.cluster.hang_before(3)
    asking = asyncio.create_task(token_ids(served))
    await eventually(lambda: served.cluster.hanging)
    takes_office(served, epoch=5)
    await asyncio.sleep(0.05)  # time in which it would ask the worker
    held.set_result(None)
    assert await asking == WHOLE
    assert served.cluster.known == []


async def test_two_workers_on_one_request_make_one_stream(served: ServedGateway) -> None:
    """A router that could not ask the worker gives the request to another: the same tokens twice."""
    served.cluster.forgetful = True
    first = served.cluster.hang_before(0)
    asking = asyncio.create_task(token_ids(served))
    await eventually(lambda: served.cluster.hanging)
    served.cluster.before = lambda request, position: None
    takes_office(served, epoch=5)
    first.set_result(None)
    assert await asking == WHOLE
    assert len({request.request_id for request in served.cluster.submitted}) == 1


async def test_a_dead_worker_s_requests_go_elsewhere_when_the_router_says_nothing(served: ServedGateway) -> None:
    served.cluster.hang_before(3)
    asking = asyncio.create_task(token_ids(served))
    await eventually(lambda: served.cluster.hanging)
    dead = LeaseChanged(service="worker", id=WORKER, epoch=1, state="dead", reason="silent for 2.5 s", at=1.0)
    served.cluster.bus.publish(LEASE, dead, id=WORKER)
    assert await asking == WHOLE
    assert [one.generated for one in served.cluster.submitted] == [[], WHOLE[:3]]


async def test_a_request_whose_new_worker_dies_at_once_is_resumed(served: ServedGateway) -> None:
    """All that is known of it is an empty row."""
    served.cluster.hang_before(3)
    asking = asyncio.create_task(token_ids(served))
    await eventually(lambda: served.cluster.hanging)
    taken_over(served, "worker-9", 3)
    dies(served, WORKER)  # it has nothing to do with it any more
    dies(served, "worker-9")
    assert await asking == WHOLE
    assert [one.generated for one in served.cluster.submitted] == [[], WHOLE[:3]]


async def test_a_worker_that_gave_a_request_away_need_not_know_it_any_more(
    served: ServedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("livescale.services.gateway.request_stream.SILENCE_SECONDS", 0.05)
    monkeypatch.setattr("livescale.services.gateway.streams.ABSENT_SECONDS", 60.0)  # for this one to be absent twice
    held = served.cluster.hang_before(3)

    async def give_away() -> None:
        taken_over(served, "worker-9", 3)
        await eventually(lambda: only_stream(served).worker == "worker-9")

    served.cluster.before_replay = give_away
    served.cluster.replay_refusal = Refusal(404, "no such request")
    asking = asyncio.create_task(token_ids(served))
    await eventually(lambda: bool(served.cluster.replayed))
    await asyncio.sleep(0.02)  # time in which it would go elsewhere
    held.set_result(None)
    assert await asking == WHOLE
    assert len(served.cluster.submitted) == 1


async def test_a_worker_that_gave_a_request_away_need_not_be_there(
    served: ServedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("livescale.services.gateway.request_stream.SILENCE_SECONDS", 0.05)
    monkeypatch.setattr("livescale.services.gateway.streams.ABSENT_SECONDS", 1.0)
    served.cluster.worker = "worker-9"  # answers nothing
    held = served.cluster.hang_before(3)
    asking = asyncio.create_task(token_ids(served))
    await eventually(lambda: served.cluster.hanging)
    await eventually(lambda: only_stream(served).absences == 1)
    taken_over(served, WORKER, 3)
    await asyncio.sleep(1.2)  # time in which it would go elsewhere
    held.set_result(None)
    assert await asking == WHOLE
    assert len(served.cluster.submitted) == 1


async def test_tokens_made_while_the_bus_was_away_are_asked_for_at_once(
    served: ServedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("livescale.services.gateway.request_stream.SILENCE_SECONDS", 600.0)
    held = served.cluster.hang_before(3)
    asking = asyncio.create_task(token_ids(served))
    await eventually(lambda: served.cluster.hanging)
    await eventually(lambda: only_stream(served).received == 3)
    served.broker.down()
    held.set_result(None)  # the rest is generated although no reader is left
    await eventually(lambda: served.cluster.made() == len(WHOLE))
    served.broker.up()
    async with asyncio.timeout(60):  # sooner than after a silence
        assert await asking == WHOLE
    assert [replay.index for replay in served.cluster.replayed] == [3]


async def test_tokens_of_another_version_are_not_taken_and_their_worker_is_stopped(served: ServedGateway) -> None:
    served.cluster.version = "v-1"
    held = served.cluster.hang_before(4)
    asking = asyncio.create_task(token_ids(served))
    await eventually(lambda: len(served.cluster.submitted) == 1)
    await eventually(lambda: only_stream(served).received == 4)
    request = served.cluster.submitted[0]
    row = Tokens(request_id=request.request_id, index=4, token_ids=[99])
    frame = TokenFrame(worker=WORKER, step=9, rows=[row], version="v-2")
    served.cluster.bus.publish(TOKENS, frame, gateway=request.gateway)
    await eventually(lambda: request.request_id in served.cluster.stopped)
    held.set_result(None)
    assert await asking == WHOLE


async def test_a_worker_that_does_not_answer_floods_no_log() -> None:
    """Each of its streams asks again."""

    async def refuse(message: Replay, context: Context) -> Ack:
        raise Refusal(503, "busy")

    broker = LocalBroker()
    worker, bus = broker.connect(), broker.connect()
    await worker.serve(ServiceInfo("worker", WORKER, "refuses"), [Endpoint(REPLAY, refuse, {"id": WORKER})])
    streams = RequestStreams(
        bus, "gateway-0", GatewayMetrics(Telemetry("gateway", "gateway-0"), LoopClock(0.0)), 100, 4
    )
    receiving = asyncio.create_task(streams.run(await streams.listen()))
    await asyncio.sleep(0)
    with ExitStack() as opened, capture_logs() as logs:
        for index in range(50):
            stream = opened.enter_context(streams.open(f"req-{index}", 0))
            stream.worker = WORKER
            streams.ask_again(stream)
        await asyncio.sleep(0.2)  # time in which all would be told
    ours = [line["event"] for line in logs if line["event"] != "call_refused"]  # which the worker tells
    assert ours == ["replay_not_answered"]
    receiving.cancel()
    await asyncio.wait([receiving])
    await bus.close()
    await worker.close()


def test_a_new_request_too_many_is_refused_and_one_that_was_accepted_is_held() -> None:
    registry = CollectorRegistry()
    held = HeldRequests(Gauge("held", "Held", registry=registry), most=2)
    with ExitStack() as waiting:
        waiting.enter_context(held.hold(is_new=True))
        waiting.enter_context(held.hold(is_new=False))
        with pytest.raises(ApiError, match="2 requests already wait") as refused, held.hold(is_new=True):
            raise AssertionError("it was held")
        assert refused.value.status == 429
        waiting.enter_context(held.hold(is_new=False))
        assert registry.get_sample_value("held") == 3
    assert registry.get_sample_value("held") == 0
    with held.hold(is_new=True):
        assert registry.get_sample_value("held") == 1


def test_a_request_that_ends_with_an_error_makes_room() -> None:
    held = HeldRequests(Gauge("held", "Held", registry=CollectorRegistry()), most=1)
    with pytest.raises(ValueError, match="the client went away"), held.hold(is_new=True):
        raise ValueError("the client went away")
    with held.hold(is_new=True):
        pass
