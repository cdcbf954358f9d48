"""What every request meets before its endpoint: its id, its trace, the key and the limit of its size."""

import os
from pathlib import Path

import msgspec

from tests.gateway.conftest import ServedGateway, serve_gateway

ASK = {"model": "tiny", "prompt": "abc", "max_tokens": 2}


async def test_too_large_bodies_are_refused(checkpoint: Path) -> None:
    async with serve_gateway(checkpoint, max_body_bytes=2048) as served:
        status, body = await served.post("/v1/completions", {**ASK, "prompt": "x" * 3000})
        assert (status, body["error"]["code"]) == (413, "request_too_large")


async def test_a_prompt_too_large_for_the_bus_is_refused(served: ServedGateway) -> None:
    served.broker.max_payload = 600
    status, body = await served.post("/v1/completions", {**ASK, "prompt": [900] * 200})
    assert (status, body["error"]["code"]) == (413, "request_too_large")


async def test_request_ids_are_taken_over_or_given(served: ServedGateway) -> None:
    async def id_of(headers: dict[str, str]) -> str:
        async with served.http.post(f"{served.url}/v1/completions", json=ASK, headers=headers) as answer:
            return answer.headers["x-request-id"]

    assert await id_of({"x-request-id": "mine-1"}) == "mine-1"
    assert served.cluster.contexts[-1].request_id == "mine-1"
    assert await id_of({"x-request-id": "mine-1"}) == "mine-1"
    given = [await id_of({}), await id_of({"x-request-id": "x" * 200})]
    assert len({*given}) == 2
    assert len({submit.request_id for submit in served.cluster.submitted}) == 4


async def test_the_trace_goes_on_behind_the_gateway(served: ServedGateway) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for sent, expected in ((trace, trace), ("nonsense", None)):
        async with served.http.post(f"{served.url}/v1/completions", json=ASK, headers={"traceparent": sent}):
            assert served.cluster.contexts[-1].traceparent == expected


async def test_the_key_guards_the_api_and_the_operators_endpoints(checkpoint: Path) -> None:
    async with serve_gateway(checkpoint, api_key=("secret",)) as served:
        assert [model.id async for model in served.client.models.list()] == ["tiny"]
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic secret"}):
            for path in ("/v1/models", "/admin/v1/models", "/v1/nothing"):
                async with served.http.get(served.url + path, headers=headers) as answer:
                    assert answer.status == 401
                    assert (await answer.json())["error"]["code"] == "invalid_api_key"
        assert (await served.get("/live"))[0] == 200
        document = (await served.get("/openapi.json"))[1]
        assert document["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}


async def test_the_url_is_told_in_the_ready_file(checkpoint: Path, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    async with serve_gateway(checkpoint, ready_file=str(ready)) as served:
        assert msgspec.json.decode(ready.read_bytes()) == {"url": served.url}
    assert os.listdir(tmp_path) == ["ready.json"]
