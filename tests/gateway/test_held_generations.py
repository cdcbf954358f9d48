"""Requests that no router takes: they are held, or submitted again."""

import asyncio
from pathlib import Path

import pytest

from livescale.shared.bus.contract import Refusal
from tests.gateway.asking import ASK, WHOLE, lose, router_waits, token_ids
from tests.gateway.conftest import ServedGateway, eventually, serve_gateway

SUBJECTS = ("svc.", "livescale.", "Submit", "Error", "router")  # nothing of these is a client's to know


async def test_a_request_without_a_bus_is_held_until_its_deadline(served: ServedGateway) -> None:
    await token_ids(served)
    served.broker.down()
    status, body = await served.post("/v1/completions", {**ASK, "timeout": 0.5})
    assert (status, body["error"]["code"]) == (504, "timeout")
    assert not [word for word in SUBJECTS if word in body["error"]["message"]]
    served.broker.up()
    assert await token_ids(served) == WHOLE


async def test_a_stream_without_a_router_has_comments_and_then_its_tokens(
    served: ServedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("livescale.services.gateway.generation.TOLD_SECONDS", 0.1)
    await token_ids(served)
    await served.cluster.leave_office()
    async with served.http.post(f"{served.url}/v1/completions", json={**ASK, "stream": True}) as answer:
        assert answer.status == 200
        assert await answer.content.readline() == b": waiting\n"
        assert await router_waits(served) == 1
        await served.cluster.take_office()
        assert (await answer.text()).endswith("data: [DONE]\n\n")
    assert await router_waits(served) == 0


@pytest.mark.parametrize("refusal", [Refusal(503, "not sure", retry_after_ms=100), Refusal(504, "too late")])
async def test_a_request_that_a_router_cannot_take_just_now_is_held(served: ServedGateway, refusal: Refusal) -> None:
    served.cluster.refusal = refusal
    asking = asyncio.create_task(token_ids(served))
    await eventually(lambda: served.cluster.refused > 1)
    served.cluster.refusal = None
    assert await asking == WHOLE


async def test_a_request_whose_tokens_come_is_not_submitted_again(
    served: ServedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A router that slept took it, and its answer came too late: the client waits for no other attempt."""
    monkeypatch.setattr("livescale.services.gateway.generation.RETRY_SECONDS", 60.0)
    served.cluster.answers_late = True
    assert await token_ids(served) == WHOLE
    assert (len(served.cluster.submitted), served.cluster.known) == (1, [])


async def test_a_bounded_number_of_requests_is_held_without_a_router(checkpoint: Path) -> None:
    async with serve_gateway(checkpoint, max_held=1) as served:
        await served.cluster.leave_office()
        first = asyncio.create_task(token_ids(served))
        async with asyncio.timeout(60):
            while await router_waits(served) != 1:  # noqa: ASYNC110 told by HTTP
                await asyncio.sleep(0.02)
        status, body = await served.post("/v1/completions", ASK)
        assert (status, body["error"]["code"]) == (429, "queue_full")
        await served.cluster.take_office()
        assert await first == WHOLE


async def test_an_accepted_request_waits_for_a_router_however_often_it_is_refused(
    served: ServedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("livescale.services.gateway.generation.RETRY_SECONDS", 0.001)
    monkeypatch.setattr("livescale.services.gateway.generation.LONGEST_RETRY_SECONDS", 0.001)
    served.cluster.hang_before(2)
    asking = asyncio.create_task(token_ids(served))
    await eventually(lambda: served.cluster.hanging)
    served.cluster.refusal = Refusal(429, "the queue is full")
    lose(served, served.cluster.submitted[0].request_id)
    await eventually(lambda: served.cluster.refused > 20)
    served.cluster.refusal = None
    assert await asking == WHOLE
