"""Whatever happens to workers and routers, clients get the whole answer once, or an error."""

import asyncio
import time
from pathlib import Path

import pytest

from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.generation import Backend, Generation, HeldRequests
from livescale.services.gateway.metrics import GatewayMetrics
from livescale.services.gateway.output import TextOutput
from livescale.services.gateway.streams import RequestStreams
from livescale.shared.bus.contract import Context, Refusal
from livescale.shared.messages.requests import RequestLost, Submit, TokenFrame, Tokens
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.runtime.clock import LoopClock
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import TOKENS
from tests.gateway.asking import (
    ASK,
    WHOLE,
    lose,
    router_waits,
    streamed,
    token_ids,
)
from tests.gateway.cluster import running_cluster
from tests.gateway.conftest import Site, eventually, open_site
from tests.gateway.made import WORKER


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
        streams = RequestStreams(bus, "gateway-0", metrics, max_requests=1, stream_queue=4)
        receiving = asyncio.create_task(streams.run(await streams.listen()))
        submit = Submit(
            request_id="req-1", model="tiny", gateway="gateway-0", prompt=[1], max_tokens=50, deadline=time.time() + 5
        )
        output = TextOutput(lambda ids: "x" * len(ids), submit.prompt)
        generation = Generation(
            Backend(bus, LoopClock(0.0), streams, metrics, HeldRequests(metrics.router_waits, 8)),
            submit,
            output,
            Context(),
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


async def test_a_client_that_leaves_stops_the_worker_itself(site: Site) -> None:
    """The router may be away."""
    site.cluster.hang_before(3)
    asking = asyncio.create_task(streamed(site))
    await eventually(lambda: site.cluster.hanging)
    await asyncio.sleep(0.02)
    asking.cancel()
    await eventually(lambda: site.cluster.stopped == [site.cluster.submitted[0].request_id])


async def test_a_lost_request_is_submitted_again_with_the_version_that_made_its_tokens(site: Site) -> None:
    site.cluster.version = "v-1"
    site.cluster.lost_at = {1: 4}
    assert await token_ids(site) == WHOLE
    assert [(len(one.generated), one.version) for one in site.cluster.submitted] == [(0, None), (4, "v-1")]


@pytest.mark.parametrize(
    ("code", "status", "name"), [(400, 400, None), (503, 503, "overloaded"), (None, 500, "internal_error")]
)
async def test_an_end_by_the_router_says_whose_fault_it_was(
    site: Site, code: int | None, status: int, name: str | None
) -> None:
    site.cluster.hang_before(0)
    asking = asyncio.create_task(site.post("/v1/completions", ASK))
    await eventually(lambda: site.cluster.hanging)
    id = site.cluster.submitted[0].request_id
    row = Tokens(request_id=id, index=0, token_ids=[], finish_reason="error", error="it cannot be", code=code)
    site.cluster.bus.publish(TOKENS, TokenFrame(worker="router-0", step=0, rows=[row]), gateway="gateway-0")
    got, body = await asking
    assert (got, body["error"]["code"]) == (status, name)
    assert "it cannot be" in body["error"]["message"]


async def test_what_is_submitted_brings_the_time_that_is_left(site: Site) -> None:
    await site.post("/v1/completions", {**ASK, "timeout": 30})
    left = site.cluster.submitted[0].timeout_s
    assert left is not None
    assert 29 < left <= 30


async def test_a_loss_while_it_is_held_submits_it_again(site: Site) -> None:
    site.cluster.hang_before(0)
    asking = asyncio.create_task(site.post("/v1/completions", ASK))
    await eventually(lambda: site.cluster.hanging)
    site.cluster.before = lambda request, position: None
    lost = RequestLost(request_id=site.cluster.submitted[0].request_id, reason="its instance is gone")
    site.cluster.bus.publish(TOKENS, lost, gateway="gateway-0")
    status, body = await asking
    assert (status, body["choices"][0]["token_ids"]) == (200, WHOLE)
