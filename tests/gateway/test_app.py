"""What every request meets before its endpoint: its id, its trace, the key and the limit of its size."""

import gzip
import os
from pathlib import Path

import msgspec
from starlette.types import Message, Receive, Scope, Send

from livescale.services.gateway.access import Guard, Keyring
from livescale.services.gateway.app import RequestMiddleware
from livescale.services.gateway.metrics import GatewayMetrics
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.runtime.clock import CountedIds, SystemClock
from tests.gateway.conftest import ServedGateway, serve_gateway
from tests.gateway.test_openapi import ROUTES

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
        assert document["components"]["securitySchemes"] == {
            "key": {"type": "http", "scheme": "bearer"},
            "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }


async def test_the_url_is_told_in_the_ready_file(checkpoint: Path, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    async with serve_gateway(checkpoint, ready_file=str(ready)) as served:
        assert msgspec.json.decode(ready.read_bytes()) == {"url": served.url}
    assert os.listdir(tmp_path) == ["ready.json"]


async def test_a_compressed_body_is_refused_as_such(served: ServedGateway) -> None:
    body, headers = gzip.compress(msgspec.json.encode(ASK)), {"content-encoding": "gzip"}
    async with served.http.post(f"{served.url}/v1/completions", data=body, headers=headers) as answer:
        error = (await answer.json())["error"]
        assert (answer.status, error["code"]) == (415, "unsupported_content_encoding")
        assert "'gzip'; send it as plain JSON" in error["message"]


async def test_a_slash_at_the_end_of_a_path_says_nothing(served: ServedGateway) -> None:
    assert await served.get("/v1/models/") == await served.get("/v1/models")
    assert (await served.post("/v1/completions/", ASK))[0] == 200
    assert (await served.get("/"))[0] == 404


async def test_what_can_be_got_has_a_head(served: ServedGateway) -> None:
    for path in ("/v1/models", "/health", "/metrics"):
        async with served.http.get(served.url + path) as got, served.http.head(served.url + path) as head:
            assert (head.status, await head.read()) == (200, b"")
            assert head.headers["content-type"] == got.headers["content-type"]
    async with served.http.head(f"{served.url}/v1/completions") as head:
        assert (head.status, head.headers["allow"]) == (405, "POST")


CHAT_PAGE = "https://chat.example.org"


async def test_pages_of_allowed_origins_may_call_from_browsers(checkpoint: Path) -> None:
    asking = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    async with serve_gateway(checkpoint, allowed_origins=(CHAT_PAGE,), api_key=("secret",)) as served:
        url = f"{served.url}/v1/completions"
        async with served.http.options(url, headers={"origin": CHAT_PAGE, **asking}) as answer:
            assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, CHAT_PAGE)
            assert "authorization" in answer.headers["access-control-allow-headers"]
        async with served.http.options(url, headers={"origin": "https://other.example.org", **asking}) as answer:
            assert (answer.status, answer.headers.get("access-control-allow-origin")) == (400, None)
        for key, status in (("secret", 200), ("wrong", 401)):
            headers = {"origin": CHAT_PAGE, "authorization": f"Bearer {key}"}
            async with served.http.post(url, json=ASK, headers=headers) as answer:
                assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, CHAT_PAGE)
                assert "x-request-id" in answer.headers["access-control-expose-headers"]


async def test_without_the_setting_no_page_may(served: ServedGateway) -> None:
    async with served.http.post(f"{served.url}/v1/completions", json=ASK, headers={"origin": CHAT_PAGE}) as answer:
        assert "access-control-allow-origin" not in answer.headers
    async with served.http.options(f"{served.url}/v1/completions", headers={"origin": CHAT_PAGE}) as answer:
        assert answer.status == 405


async def test_the_servers_way_for_events_is_there_for_as_long_as_the_request() -> None:
    """It has the request's state: kept there it would be garbage that only a collection finds."""
    found = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(scope["state"]["send_event"])

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None: ...

    clock = SystemClock()
    metrics = GatewayMetrics(Telemetry("gateway", "gateway-0"), clock)
    scope: Scope = {"type": "http", "path": "/v1/models", "method": "GET", "headers": []}
    await RequestMiddleware(app, Guard(Keyring([]), clock, True), CountedIds(), metrics)(scope, receive, send)
    assert found == [send]
    assert "send_event" not in scope["state"]


async def test_the_page_shows_everything_and_needs_nothing_else(served: ServedGateway) -> None:
    async with served.http.get(f"{served.url}/docs") as answer:
        page = await answer.text()
    assert answer.headers["content-type"].startswith("text/html")
    for path in ROUTES:
        assert f"<code>{path}</code>" in page
    assert "max_completion_tokens" in page
    assert "://" not in page
    assert "<script" not in page
