"""Frames get lost and workers die; clients get every token once, or an error."""

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.generation import Engine, Generation
from livescale.services.gateway.holding import Holding
from livescale.services.gateway.metrics import GatewayMetrics
from livescale.services.gateway.output import Output
from livescale.services.gateway.streams import Streams
from livescale.shared.bus.contract import Context, Endpoint, Refusal, ServiceInfo
from livescale.shared.bus.contract import Context as CallContext
from livescale.shared.messages.membership import LeaseChanged, RouterReport
from livescale.shared.messages.message import Ack
from livescale.shared.messages.requests import Replay, RequestLost, Submit, TokenFrame, Tokens
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.runtime.clock import LoopClock
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import HEARTBEAT, LEASE, REPLAY, TOKENS
from tests.gateway.cluster import WORKER, running_cluster
from tests.gateway.conftest import Site, eventually, open_site

EXTRA = {"return_token_ids": True}
ASK = {"model": "tiny", "prompt": "abc", "max_tokens": 9, "return_token_ids": True}
WHOLE = [65, 66, 67] * 3


async def token_ids(site: Site) -> list[int]:
    answer = await site.client.completions.create(model="tiny", prompt="abc", max_tokens=9, extra_body=EXTRA)
    ids: list[int] = answer.choices[0].model_dump()["token_ids"]
    return ids


async def streamed(site: Site, **options: object) -> str:
    """The raw stream."""
    async with site.http.post(f"{site.url}/v1/completions", json={**ASK, **options, "stream": True}) as answer:
        return await answer.text()


async def test_a_lost_frame_is_sent_again(site: Site) -> None:
    site.cluster.lose_frame = lambda position: position in (0, 4)
    assert await token_ids(site) == WHOLE
    assert [replay.index for replay in site.cluster.replayed] == [0, 4]


async def test_a_lost_last_frame_is_asked_for_after_a_silence(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("livescale.services.gateway.streams.SILENCE_SECONDS", 0.05)
    site.cluster.lose_frame = lambda position: position == 8
    assert await token_ids(site) == WHOLE


async def test_a_worker_that_has_forgotten_the_request_is_left(site: Site) -> None:
    site.cluster.lose_frame = lambda position: position == 3 and len(site.cluster.submitted) == 1
    site.cluster.replay_refusal = Refusal(404, "no such request")
    assert await token_ids(site) == WHOLE
    first, second = site.cluster.submitted
    assert second.generated == WHOLE[:3]
    assert first.request_id in site.cluster.cancelled


async def test_a_worker_that_is_missed_twice_is_left(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first time it may only be about to reconnect. It dies before the router knows of it."""
    monkeypatch.setattr("livescale.services.gateway.streams.SILENCE_SECONDS", 0.02)
    never = asyncio.get_running_loop().create_future()
    sent = list[str]()

    def watch(subject: str) -> bool:
        sent.append(subject)
        return False

    site.broker.lose = watch
    site.cluster.worker = "worker-9"  # answers nothing
    site.cluster.before = lambda request, position: never if position == 3 and not request.generated else None
    assert await token_ids(site) == WHOLE
    assert [one.generated for one in site.cluster.submitted] == [[], WHOLE[:3]]
    assert sent.count("worker.worker-9.replay") == 2


async def test_tokens_that_are_never_resent_are_generated_elsewhere(site: Site) -> None:
    site.cluster.lose_frame = lambda position: position == 3 and len(site.cluster.submitted) == 1
    site.cluster.before = lambda request, position: asyncio.ensure_future(asyncio.sleep(0.005))
    site.cluster.resends = False
    assert await token_ids(site) == WHOLE
    assert [replay.index for replay in site.cluster.replayed] == [3, 3, 3]
    assert site.cluster.submitted[1].generated == WHOLE[:3]


async def test_a_request_whose_worker_dies_continues_where_it_was(site: Site) -> None:
    site.cluster.lost_at = {1: 2, 2: 5}
    assert await token_ids(site) == WHOLE
    first, second, third = site.cluster.submitted
    assert [one.generated for one in site.cluster.submitted] == [[], WHOLE[:2], WHOLE[:5]]
    assert len({first.request_id, second.request_id, third.request_id}) == 3
    assert first.sampling == second.sampling == third.sampling
    assert first.deadline == third.deadline


async def test_a_dead_workers_late_tokens_are_not_heard(site: Site) -> None:
    """The old attempt goes on talking after the request was resumed."""
    resumed = site.cluster.hang_before(2)
    asking = asyncio.create_task(token_ids(site))
    await eventually(lambda: site.cluster.hanging)
    site.cluster.output = [70]
    lost = RequestLost(request_id=site.cluster.submitted[0].request_id, reason="suspected")
    site.cluster.bus.publish(TOKENS, lost, gateway="gateway-0")
    resumed.set_result(None)
    assert await asking == [65, 66, *[70] * 7]


async def test_tokens_that_nobody_waits_for_are_stopped_at_their_source(site: Site) -> None:
    row = Tokens(request_id="req-of-before", index=5, token_ids=[65])
    site.cluster.bus.publish(TOKENS, TokenFrame(worker="worker-1", step=1, rows=[row]), gateway="gateway-0")
    await eventually(lambda: site.cluster.cancelled == ["req-of-before"])


async def test_a_loss_after_the_last_token_ends_the_request(site: Site) -> None:
    site.cluster.lost_at = {1: 8}
    site.cluster.output = [65, 66]
    text = await streamed(site, max_tokens=8)
    assert text.endswith("data: [DONE]\n\n")
    assert len(site.cluster.submitted) == 1


async def test_a_request_that_is_lost_too_often_ends_with_an_error(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("livescale.services.gateway.generation.RETRY_SECONDS", 0.001)
    site.cluster.lost_at = dict.fromkeys(range(1, 9), 1)
    text = await streamed(site)
    assert len(site.cluster.submitted) == 5
    assert '"code":"overloaded"' in text
    assert "[DONE]" not in text


async def test_a_refused_resumption_is_tried_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("livescale.services.gateway.generation.RETRY_SECONDS", 0.02)
    site.cluster.hang_before(2)
    asking = asyncio.create_task(token_ids(site))
    await eventually(lambda: site.cluster.hanging)
    site.cluster.refusal = Refusal(503, "no instance", retry_after_ms=100)
    id = site.cluster.submitted[0].request_id
    site.cluster.bus.publish(TOKENS, RequestLost(request_id=id, reason="gone"), gateway="gateway-0")
    await eventually(lambda: site.cluster.refused > 0)
    site.cluster.refusal = None
    assert await asking == WHOLE


async def test_a_request_without_a_token_until_its_deadline_is_a_504(site: Site) -> None:
    never = asyncio.get_running_loop().create_future()
    site.cluster.before = lambda request, position: never
    for stream in (False, True):
        status, body = await site.post("/v1/completions", {**ASK, "timeout": 0.05, "stream": stream})
        assert (status, body["error"]["code"]) == (504, "timeout")
    await eventually(lambda: len(site.cluster.cancelled) == 2)
    assert site.cluster.contexts[0].deadline == pytest.approx(site.cluster.submitted[0].deadline, abs=1)


async def test_a_request_that_others_cancelled_goes_on_because_its_client_waits(site: Site) -> None:
    site.cluster.hang_before(2)
    asking = asyncio.create_task(token_ids(site))
    await eventually(lambda: site.cluster.hanging)
    id = site.cluster.submitted[0].request_id
    row = Tokens(request_id=id, index=2, token_ids=[WHOLE[2]], finish_reason="cancelled")
    site.cluster.bus.publish(TOKENS, TokenFrame(worker=WORKER, step=9, rows=[row]), gateway="gateway-0")
    assert await asking == WHOLE
    assert site.cluster.submitted[1].generated == WHOLE[:3]


@pytest.mark.parametrize("reason", ["deadline", "error"])
async def test_a_stream_that_ends_badly_has_an_error_and_is_not_done(site: Site, reason: str) -> None:
    site.cluster.finish = reason  # type: ignore[assignment]
    text = await streamed(site)
    assert text.count("data: ") == 9
    assert 'data: {"error":' in text
    assert "[DONE]" not in text


async def test_one_failed_prompt_fails_the_answer_and_frees_the_others(site: Site) -> None:
    never = asyncio.get_running_loop().create_future()
    site.cluster.finish = "error"
    site.cluster.before = lambda request, position: never if request.prompt == [7] else None
    status, body = await site.post("/v1/completions", {**ASK, "prompt": [[5], [7]]})
    assert (status, body["error"]["code"]) == (500, "internal_error")
    await eventually(lambda: site.cluster.submitted[1].request_id in site.cluster.cancelled)


async def test_a_client_that_reads_too_slowly_is_cancelled(checkpoint: Path) -> None:
    """Its request is cancelled while it still hangs in what it was given last."""
    broker, reads = LocalBroker(), asyncio.get_running_loop().create_future()
    async with running_cluster(broker, checkpoint) as cluster:
        bus, metrics = broker.connect(), GatewayMetrics(Telemetry("gateway", "gateway-0"))
        streams = Streams(bus, "gateway-0", metrics, max_requests=1, stream_queue=4)
        receiving = asyncio.create_task(streams.run(await streams.listen()))
        submit = Submit(
            request_id="req-1", model="tiny", gateway="gateway-0", prompt=[1], max_tokens=50, deadline=time.time() + 5
        )
        output = Output(lambda ids: "x" * len(ids), submit.prompt)
        generation = Generation(
            Engine(bus, LoopClock(0.0), streams, metrics, Holding(metrics.router_waits, 8)), submit, output, Context()
        )
        running = asyncio.create_task(generation.run(lambda piece: reads))
        await eventually(lambda: cluster.cancelled == ["req-1"])
        assert not running.done()
        reads.set_result(None)
        with pytest.raises(ApiError, match="reads slower than tokens are made"):
            await running
        assert len(generation.generated) == 5  # the one it hung in and four that had room
        receiving.cancel()
        await asyncio.wait([receiving])
        await bus.close()


async def test_requests_beyond_the_limit_are_refused_at_once(checkpoint: Path) -> None:
    async with open_site(checkpoint, max_requests=1) as site:
        never = asyncio.get_running_loop().create_future()
        site.cluster.before = lambda request, position: never
        first = asyncio.create_task(token_ids(site))
        await eventually(lambda: len(site.cluster.submitted) == 1)
        status, body = await site.post("/v1/completions", ASK)
        assert (status, body["error"]["code"]) == (429, "queue_full")
        first.cancel()
        await eventually(lambda: len(site.cluster.cancelled) == 1)
        site.cluster.before = lambda request, position: None
        assert await token_ids(site) == WHOLE


async def router_waits(site: Site) -> float:
    async with site.http.get(f"{site.url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    [line] = [line for line in lines if line.startswith("livescale_gateway_router_waits")]
    return float(line.rsplit(" ", 1)[1])


SUBJECTS = ("svc.", "livescale.", "Submit", "Error", "router")  # nothing of these is a client's to know


async def test_a_request_without_a_bus_is_held_until_its_deadline(site: Site) -> None:
    await token_ids(site)
    site.broker.down()
    status, body = await site.post("/v1/completions", {**ASK, "timeout": 0.5})
    assert (status, body["error"]["code"]) == (504, "timeout")
    assert not [word for word in SUBJECTS if word in body["error"]["message"]]
    site.broker.up()
    assert await token_ids(site) == WHOLE


async def test_a_stream_without_a_router_has_comments_and_then_its_tokens(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("livescale.services.gateway.generation.TOLD_SECONDS", 0.1)
    await token_ids(site)
    await site.cluster.leave_office()
    async with site.http.post(f"{site.url}/v1/completions", json={**ASK, "stream": True}) as answer:
        assert answer.status == 200
        assert await answer.content.readline() == b": waiting\n"
        assert await router_waits(site) == 1
        await site.cluster.take_office()
        assert (await answer.text()).endswith("data: [DONE]\n\n")
    assert await router_waits(site) == 0


@pytest.mark.parametrize("refusal", [Refusal(503, "not sure", retry_after_ms=100), Refusal(504, "too late")])
async def test_a_request_that_a_router_cannot_take_just_now_is_held(site: Site, refusal: Refusal) -> None:
    site.cluster.refusal = refusal
    asking = asyncio.create_task(token_ids(site))
    await eventually(lambda: site.cluster.refused > 1)
    site.cluster.refusal = None
    assert await asking == WHOLE


async def test_of_requests_without_a_router_a_bounded_number_is_held(checkpoint: Path) -> None:
    async with open_site(checkpoint, max_held=1) as site:
        await site.cluster.leave_office()
        first = asyncio.create_task(token_ids(site))
        async with asyncio.timeout(5.0):
            while await router_waits(site) != 1:  # noqa: ASYNC110 told by HTTP
                await asyncio.sleep(0.02)
        status, body = await site.post("/v1/completions", ASK)
        assert (status, body["error"]["code"]) == (429, "queue_full")
        await site.cluster.take_office()
        assert await first == WHOLE


async def test_an_accepted_request_waits_for_a_router_however_often_it_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("livescale.services.gateway.generation.RETRY_SECONDS", 0.001)
    monkeypatch.setattr("livescale.services.gateway.generation.LONGEST_RETRY_SECONDS", 0.001)
    site.cluster.hang_before(2)
    asking = asyncio.create_task(token_ids(site))
    await eventually(lambda: site.cluster.hanging)
    site.cluster.refusal = Refusal(429, "the queue is full")
    lose(site, site.cluster.submitted[0].request_id)
    await eventually(lambda: site.cluster.refused > 20)
    site.cluster.refusal = None
    assert await asking == WHOLE


async def test_what_no_worker_has_begun_is_submitted_again_to_a_new_router(site: Site) -> None:
    held = site.cluster.hang_before(0)
    asking = asyncio.create_task(token_ids(site))
    await eventually(lambda: site.cluster.hanging)
    id = site.cluster.submitted[0].request_id
    takes_office(site, epoch=5)
    await eventually(lambda: site.cluster.known == [id])
    takes_office(site, epoch=5)  # the next heartbeat of the same one
    takes_office(site, epoch=4)  # one that had been stopped, and wakes
    takes_office(site, epoch=7)
    await eventually(lambda: site.cluster.known == [id, id])
    held.set_result(None)
    assert await asking == WHOLE
    assert len(site.cluster.submitted) == 1


async def test_what_a_worker_has_begun_is_left_alone_when_a_router_takes_office(site: Site) -> None:
    held = site.cluster.hang_before(3)
    asking = asyncio.create_task(token_ids(site))
    await eventually(lambda: site.cluster.hanging)
    takes_office(site, epoch=5)
    await asyncio.sleep(0.05)
    held.set_result(None)
    assert await asking == WHOLE
    assert site.cluster.known == []


async def test_two_workers_on_one_request_make_one_stream(site: Site) -> None:
    """A router that could not ask the worker gives the request to another: the same tokens twice."""
    site.cluster.forgetful = True
    first = site.cluster.hang_before(0)
    asking = asyncio.create_task(token_ids(site))
    await eventually(lambda: site.cluster.hanging)
    site.cluster.before = lambda request, position: None
    takes_office(site, epoch=5)
    first.set_result(None)
    assert await asking == WHOLE
    assert len({request.request_id for request in site.cluster.submitted}) == 1


async def test_a_dead_worker_s_requests_go_elsewhere_when_the_router_says_nothing(site: Site) -> None:
    site.cluster.hang_before(3)
    asking = asyncio.create_task(token_ids(site))
    await eventually(lambda: site.cluster.hanging)
    dead = LeaseChanged(service="worker", id=WORKER, epoch=1, state="dead", reason="silent for 2.5 s", at=1.0)
    site.cluster.bus.publish(LEASE, dead, id=WORKER)
    assert await asking == WHOLE
    assert [one.generated for one in site.cluster.submitted] == [[], WHOLE[:3]]


def taken_over(site: Site, worker: str, index: int = 0) -> None:
    """A worker says that the last request is its own now; it has made no token of it yet."""
    row = Tokens(request_id=site.cluster.submitted[-1].request_id, index=index, token_ids=[])
    site.cluster.bus.publish(TOKENS, TokenFrame(worker=worker, step=1, rows=[row]), gateway="gateway-0")


def dies(site: Site, worker: str) -> None:
    dead = LeaseChanged(service="worker", id=worker, epoch=1, state="dead", reason="silent for 2.5 s", at=1.0)
    site.cluster.bus.publish(LEASE, dead, id=worker)


async def test_a_request_whose_new_worker_dies_at_once_is_resumed(site: Site) -> None:
    """All that is known of it is an empty row."""
    site.cluster.hang_before(3)
    asking = asyncio.create_task(token_ids(site))
    await eventually(lambda: site.cluster.hanging)
    taken_over(site, "worker-9", 3)
    dies(site, WORKER)  # it has nothing to do with it any more
    dies(site, "worker-9")
    assert await asking == WHOLE
    assert [one.generated for one in site.cluster.submitted] == [[], WHOLE[:3]]


async def test_a_worker_that_gave_a_request_away_need_not_know_it_any_more(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("livescale.services.gateway.streams.SILENCE_SECONDS", 0.05)
    held = site.cluster.hang_before(3)

    async def give_away() -> None:
        taken_over(site, "worker-9", 3)
        await asyncio.sleep(0.01)

    site.cluster.before_replay = give_away
    site.cluster.replay_refusal = Refusal(404, "no such request")
    asking = asyncio.create_task(token_ids(site))
    await eventually(lambda: bool(site.cluster.replayed))
    await asyncio.sleep(0.02)
    held.set_result(None)
    assert await asking == WHOLE
    assert len(site.cluster.submitted) == 1


async def test_nor_need_it_be_there(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("livescale.services.gateway.streams.SILENCE_SECONDS", 0.05)
    monkeypatch.setattr("livescale.services.gateway.streams.ABSENT_SECONDS", 0.1)
    site.cluster.worker = "worker-9"  # answers nothing
    held = site.cluster.hang_before(3)
    asking = asyncio.create_task(token_ids(site))
    await eventually(lambda: site.cluster.hanging)
    await asyncio.sleep(0.08)  # it was missed once
    taken_over(site, WORKER, 3)
    await asyncio.sleep(0.1)
    held.set_result(None)
    assert await asking == WHOLE
    assert len(site.cluster.submitted) == 1


async def test_tokens_made_while_the_bus_was_away_are_asked_for_at_once(site: Site) -> None:
    held = site.cluster.hang_before(3)
    asking = asyncio.create_task(token_ids(site))
    await eventually(lambda: site.cluster.hanging)
    await asyncio.sleep(0.02)
    site.broker.down()
    held.set_result(None)  # all the rest is made, and heard by nobody
    await asyncio.sleep(0.05)
    site.broker.up()
    async with asyncio.timeout(0.9):  # sooner than after a silence
        assert await asking == WHOLE
    assert [replay.index for replay in site.cluster.replayed] == [3]


async def test_a_client_that_leaves_stops_the_worker_itself(site: Site) -> None:
    """The router may be away."""
    site.cluster.hang_before(3)
    asking = asyncio.create_task(streamed(site))
    await eventually(lambda: site.cluster.hanging)
    await asyncio.sleep(0.02)
    asking.cancel()
    await eventually(lambda: site.cluster.stopped == [site.cluster.submitted[0].request_id])


def lose(site: Site, request_id: str) -> None:
    site.cluster.bus.publish(TOKENS, RequestLost(request_id=request_id, reason="gone"), gateway="gateway-0")


def takes_office(site: Site, epoch: int) -> None:
    site.cluster.bus.publish(HEARTBEAT, RouterReport(id="router-1", epoch=epoch), service="router", id="router-1")


async def test_a_lost_request_is_submitted_again_with_the_version_that_made_its_tokens(site: Site) -> None:
    site.cluster.version = "v-1"
    site.cluster.lost_at = {1: 4}
    assert await token_ids(site) == WHOLE
    assert [(len(one.generated), one.version) for one in site.cluster.submitted] == [(0, None), (4, "v-1")]


async def test_tokens_of_another_version_are_not_taken_and_their_worker_is_stopped(site: Site) -> None:
    site.cluster.version = "v-1"
    held = site.cluster.hang_before(4)
    asking = asyncio.create_task(token_ids(site))
    await eventually(lambda: len(site.cluster.submitted) == 1)
    await asyncio.sleep(0.1)
    request = site.cluster.submitted[0]
    row = Tokens(request_id=request.request_id, index=4, token_ids=[99])
    frame = TokenFrame(worker=WORKER, step=9, rows=[row], version="v-2")
    site.cluster.bus.publish(TOKENS, frame, gateway=request.gateway)
    await eventually(lambda: request.request_id in site.cluster.stopped)
    held.set_result(None)
    assert await asking == WHOLE


async def test_a_worker_that_does_not_answer_floods_no_log() -> None:
    """Each of its streams asks again."""

    async def refuse(message: Replay, context: CallContext) -> Ack:
        raise Refusal(503, "busy")

    broker = LocalBroker()
    worker, bus = broker.connect(), broker.connect()
    await worker.serve(ServiceInfo("worker", WORKER, "refuses"), [Endpoint(REPLAY, refuse, {"id": WORKER})])
    streams = Streams(bus, "gateway-0", GatewayMetrics(Telemetry("gateway", "gateway-0")), 100, 4)
    receiving = asyncio.create_task(streams.run(await streams.listen()))
    await asyncio.sleep(0)
    with ExitStack() as opened, capture_logs() as logs:
        for index in range(50):
            stream = opened.enter_context(streams.open(f"req-{index}", 0))
            stream.worker = WORKER
            streams.ask_again(stream)
        await asyncio.sleep(0.2)
    ours = [line["event"] for line in logs if line["event"] != "call_refused"]  # which the worker tells
    assert ours == ["replay_not_answered"]
    receiving.cancel()
    await asyncio.wait([receiving])
    await bus.close()
    await worker.close()
