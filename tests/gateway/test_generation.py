"""Whatever happens to workers and routers, clients get the whole answer once, or an error."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.generation import Generation
from livescale.services.gateway.metrics import GatewayMetrics
from livescale.services.gateway.output import TextOutput
from livescale.services.gateway.streams import Backend, HeldRequests, RequestStreams
from livescale.shared.bus.contract import Context, Refusal
from livescale.shared.messages.requests import RequestLost, Submit, TokenFrame, Tokens
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import TOKENS
from tests.clocks import LoopClock
from tests.gateway.asking import (
    ASK,
    WHOLE,
    only_stream,
    streamed,
    token_ids,
)
from tests.gateway.cluster import running_cluster
from tests.gateway.conftest import ServedGateway, eventually
from tests.gateway.reports import WORKER

HELLO = {"role": "user", "content": "hello"}


async def test_a_request_whose_worker_dies_continues_where_it_was(served: ServedGateway) -> None:
    served.cluster.lost_at = {1: 2, 2: 5}
    assert await token_ids(served) == WHOLE
    first, second, third = served.cluster.submitted
    assert [one.generated for one in served.cluster.submitted] == [[], WHOLE[:2], WHOLE[:5]]
    assert len({first.request_id, second.request_id, third.request_id}) == 3
    assert first.sampling == second.sampling == third.sampling
    assert first.deadline == third.deadline


async def test_a_dead_workers_late_tokens_are_not_heard(served: ServedGateway) -> None:
    """The old attempt goes on talking after the request was resumed."""
    resumed = served.cluster.hang_before(2)
    asking = asyncio.create_task(token_ids(served))
    await eventually(lambda: served.cluster.hanging)
    served.cluster.output = [70]
    lost = RequestLost(request_id=served.cluster.submitted[0].request_id, reason="suspected")
    served.cluster.bus.publish(TOKENS, lost, gateway="gateway-0")
    resumed.set_result(None)
    assert await asking == [65, 66, *[70] * 7]


async def test_a_loss_after_the_last_token_ends_the_request(served: ServedGateway) -> None:
    served.cluster.lost_at = {1: 8}
    served.cluster.output = [65, 66]
    text = await streamed(served, max_tokens=8)
    assert text.endswith("data: [DONE]\n\n")
    assert len(served.cluster.submitted) == 1


async def test_a_request_that_is_lost_too_often_ends_with_an_error(
    served: ServedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("livescale.services.gateway.generation.RETRY_SECONDS", 0.001)
    served.cluster.lost_at = dict.fromkeys(range(1, 9), 1)
    text = await streamed(served)
    assert len(served.cluster.submitted) == 5
    assert '"code":"overloaded"' in text
    assert "[DONE]" not in text


async def test_a_refused_resumption_is_tried_again(served: ServedGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("livescale.services.gateway.generation.RETRY_SECONDS", 0.02)
    served.cluster.hang_before(2)
    asking = asyncio.create_task(token_ids(served))
    await eventually(lambda: served.cluster.hanging)
    served.cluster.refusal = Refusal(503, "no instance", retry_after_ms=100)
    id = served.cluster.submitted[0].request_id
    served.cluster.bus.publish(TOKENS, RequestLost(request_id=id, reason="gone"), gateway="gateway-0")
    await eventually(lambda: served.cluster.refused > 0)
    served.cluster.refusal = None
    assert await asking == WHOLE


async def test_a_request_without_a_token_until_its_deadline_is_a_504(served: ServedGateway) -> None:
    never = asyncio.get_running_loop().create_future()
    served.cluster.before = lambda request, position: never
    for stream in (False, True):
        status, body = await served.post("/v1/completions", {**ASK, "timeout": 0.5, "stream": stream})
        assert (status, body["error"]["code"]) == (504, "timeout")
    await eventually(lambda: len(served.cluster.cancelled) == 2)
    assert served.cluster.contexts[0].deadline == pytest.approx(served.cluster.submitted[0].deadline, abs=1)


async def test_a_request_that_others_cancelled_goes_on_because_its_client_waits(served: ServedGateway) -> None:
    served.cluster.hang_before(2)
    asking = asyncio.create_task(token_ids(served))
    await eventually(lambda: served.cluster.hanging)
    id = served.cluster.submitted[0].request_id
    row = Tokens(request_id=id, index=2, token_ids=[WHOLE[2]], finish_reason="cancelled")
    served.cluster.bus.publish(TOKENS, TokenFrame(worker=WORKER, step=9, rows=[row]), gateway="gateway-0")
    assert await asking == WHOLE
    assert served.cluster.submitted[1].generated == WHOLE[:3]


@pytest.mark.parametrize("reason", ["deadline", "error"])
async def test_a_stream_that_ends_badly_has_an_error_and_is_not_done(served: ServedGateway, reason: str) -> None:
    served.cluster.finish = reason  # type: ignore[assignment]
    text = await streamed(served)
    assert text.count("data: ") == 9
    assert 'data: {"error":' in text
    assert "[DONE]" not in text


async def test_one_failed_prompt_fails_the_answer_and_frees_the_others(served: ServedGateway) -> None:
    never = asyncio.get_running_loop().create_future()
    served.cluster.finish = "error"
    served.cluster.before = lambda request, position: never if request.prompt == [7] else None
    status, body = await served.post("/v1/completions", {**ASK, "prompt": [[5], [7]]})
    assert (status, body["error"]["code"]) == (500, "internal_error")
    await eventually(lambda: served.cluster.submitted[1].request_id in served.cluster.cancelled)


async def test_a_client_that_reads_too_slowly_is_cancelled(checkpoint: Path) -> None:
    """Its request is cancelled while it still hangs in what it was given last."""
    broker, reads = LocalBroker(), asyncio.get_running_loop().create_future()
    async with running_cluster(broker, checkpoint) as cluster:
        bus, metrics = broker.connect(), GatewayMetrics(Telemetry("gateway", "gateway-0"), LoopClock(0.0))
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
        with pytest.raises(ApiError, match="reads more slowly than tokens are generated"):
            await running
        assert len(generation.generated) == 5  # the one it hung in and four that had room
        receiving.cancel()
        await asyncio.wait([receiving])
        await bus.close()


async def test_a_client_that_leaves_stops_the_worker_itself(served: ServedGateway) -> None:
    """The router may be away."""
    served.cluster.hang_before(3)
    asking = asyncio.create_task(streamed(served))
    await eventually(lambda: served.cluster.hanging)
    await eventually(lambda: only_stream(served).received == 3)
    asking.cancel()
    await eventually(lambda: served.cluster.stopped == [served.cluster.submitted[0].request_id])


async def test_an_answer_names_the_version_that_made_it(served: ServedGateway) -> None:
    served.cluster.version = "v-1"
    asked: dict[str, Any] = {"model": "tiny", "prompt": "a", "max_tokens": 3}
    _, whole = await served.post("/v1/completions", asked)
    stream = await served.client.completions.create(**asked, stream=True)
    told = {chunk.system_fingerprint async for chunk in stream}
    assert (whole["system_fingerprint"], told) == ("v-1", {"v-1"})
    served.cluster.version = "v-2"
    _, later = await served.post("/v1/completions", asked)
    assert later["system_fingerprint"] == "v-2"


async def test_a_lost_request_is_submitted_again_with_the_version_that_made_its_tokens(served: ServedGateway) -> None:
    served.cluster.version = "v-1"
    served.cluster.lost_at = {1: 4}
    assert await token_ids(served) == WHOLE
    assert [(len(one.generated), one.version) for one in served.cluster.submitted] == [(0, None), (4, "v-1")]


@pytest.mark.parametrize(
    ("code", "status", "name"),
    [(400, 400, None), (422, 400, "grammar_failed"), (503, 503, "overloaded"), (None, 500, "internal_error")],
)
async def test_an_end_by_the_router_says_whose_fault_it_was(
    served: ServedGateway, code: int | None, status: int, name: str | None
) -> None:
    served.cluster.hang_before(0)
    asking = asyncio.create_task(served.post("/v1/completions", ASK))
    await eventually(lambda: served.cluster.hanging)
    id = served.cluster.submitted[0].request_id
    row = Tokens(request_id=id, index=0, token_ids=[], finish_reason="error", error="it cannot be", code=code)
    served.cluster.bus.publish(TOKENS, TokenFrame(worker="router-0", step=0, rows=[row]), gateway="gateway-0")
    got, body = await asking
    assert (got, body["error"]["code"]) == (status, name)
    assert "it cannot be" in body["error"]["message"]


@pytest.mark.parametrize(
    ("path", "asked", "param"),
    [
        ("/v1/completions", {"prompt": "a", "guided_grammar": 'start: "a"'}, "guided_grammar"),
        ("/v1/chat/completions", {"messages": [HELLO], "response_format": {"type": "json_object"}}, "response_format"),
        (
            "/v1/chat/completions",
            {"messages": [HELLO], "structured_outputs": {"regex": "a"}},
            "structured_outputs.regex",
        ),
        ("/v1/responses", {"input": "hello", "text": {"format": {"type": "json_object"}}}, "text.format"),
    ],
)
async def test_a_grammar_that_cannot_be_followed_is_called_by_its_parameter(
    served: ServedGateway, path: str, asked: dict[str, Any], param: str
) -> None:
    served.cluster.hang_before(0)
    asking = asyncio.create_task(served.post(path, {"model": "tiny", **asked}))
    await eventually(lambda: served.cluster.hanging)
    id = served.cluster.submitted[0].request_id
    row = Tokens(request_id=id, index=0, token_ids=[], finish_reason="error", error="it is endless", code=422)
    served.cluster.bus.publish(TOKENS, TokenFrame(worker=WORKER, step=0, rows=[row]), gateway="gateway-0")
    status, body = await asking
    assert (status, body["error"]["code"], body["error"]["param"]) == (400, "grammar_failed", param)


async def test_what_is_submitted_brings_the_time_that_is_left(served: ServedGateway) -> None:
    await served.post("/v1/completions", {**ASK, "timeout": 30})
    left = served.cluster.submitted[0].timeout_s
    assert left is not None
    assert 29 < left <= 30


async def test_a_loss_while_it_is_held_submits_it_again(served: ServedGateway) -> None:
    served.cluster.hang_before(0)
    asking = asyncio.create_task(served.post("/v1/completions", ASK))
    await eventually(lambda: served.cluster.hanging)
    served.cluster.before = lambda request, position: None
    lost = RequestLost(request_id=served.cluster.submitted[0].request_id, reason="its instance is gone")
    served.cluster.bus.publish(TOKENS, lost, gateway="gateway-0")
    status, body = await asking
    assert (status, body["choices"][0]["token_ids"]) == (200, WHOLE)
