"""Keys, rights and limits as clients of a gateway meet them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from livescale.services.gateway.access import Guard
from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.keys import Keyring
from livescale.services.gateway.openapi import Document
from livescale.shared.runtime.clock import SystemClock
from tests.gateway.conftest import Site, eventually, open_site

ASK = {"model": "tiny", "prompt": "abc", "max_tokens": 4}
KEYS = """
- {name: alice, key: alice-key, requests-per-minute: 3, tokens-per-minute: 600}
- {name: bob, key: bob-key, max-concurrent: 1}
- {name: small, key: small-key, tokens-per-minute: 10}
- {name: ops, key: ops-key, admin: true}
"""


@pytest.fixture
def keys(tmp_path: Path) -> str:
    path = tmp_path / "keys.yaml"
    path.write_text(KEYS)
    path.chmod(0o600)
    return str(path)


async def ask(
    site: Site, key: str, path: str = "/v1/completions", **changes: Any
) -> tuple[int, dict[str, str], Document]:
    headers = {"authorization": f"Bearer {key}"}
    async with site.http.post(site.url + path, json=ASK | changes, headers=headers) as answer:
        return answer.status, {k.lower(): v for k, v in answer.headers.items()}, await answer.json()


async def test_requests_over_the_limit_are_told_when_to_come_back(checkpoint: Path, keys: str) -> None:
    async with open_site(checkpoint, api_keys=keys) as site:
        for left in (2, 1, 0):
            status, headers, _ = await ask(site, "alice-key")
            assert (status, headers["x-ratelimit-remaining-requests"]) == (200, str(left))
            assert headers["x-ratelimit-limit-requests"] == "3"
        status, headers, body = await ask(site, "alice-key")
        assert (status, body["error"]["code"], body["error"]["type"]) == (
            429,
            "rate_limit_exceeded",
            "rate_limit_error",
        )
        assert "'alice' is allowed 3 requests a minute" in body["error"]["message"]
        assert 0 < int(headers["retry-after-ms"]) <= 20_000
        assert 1 <= int(headers["retry-after"]) <= 20
        assert headers["x-ratelimit-remaining-requests"] == "0"
        assert headers["x-ratelimit-reset-requests"].endswith("s")
        # Others are not concerned.
        assert (await ask(site, "bob-key"))[0] == 200
        assert 'rejections_total{code="rate_limit_exceeded"} 1.0' in site.gateway._world.telemetry.exposition()


async def test_tokens_are_reserved_and_corrected_at_the_end(checkpoint: Path, keys: str) -> None:
    async with open_site(checkpoint, api_keys=keys) as site:
        site.cluster.output = [5]
        released = site.cluster.hang_before(2)
        running = asyncio.create_task(ask(site, "alice-key", prompt=[5] * 20, max_tokens=200))
        await eventually(lambda: site.cluster.hanging)
        _, headers, _ = await ask(site, "alice-key", "/tokenize", prompt="a", max_tokens=None)
        assert int(headers["x-ratelimit-remaining-tokens"]) in range(380, 390)
        site.cluster.output = site.cluster.submitted[0].stop_token_ids
        released.set_result(None)
        assert (await running)[2]["usage"]["total_tokens"] == 23
        _, headers, _ = await ask(site, "alice-key", "/tokenize", prompt="a", max_tokens=None)
        assert int(headers["x-ratelimit-remaining-tokens"]) in range(577, 590)


async def test_a_request_that_was_never_served_costs_no_tokens(checkpoint: Path, keys: str) -> None:
    async with open_site(checkpoint, api_keys=keys) as site:
        status, headers, _ = await ask(site, "small-key", max_tokens=5000)
        assert (status, headers["x-ratelimit-remaining-tokens"]) == (400, "10")
        status, headers, _ = await ask(site, "small-key", prompt=[5, 6, 7], max_tokens=40)
        assert status == 200
        status, headers, body = await ask(site, "small-key", prompt=[5], max_tokens=1)
        assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
        assert "10 tokens a minute" in body["error"]["message"]
        assert int(headers["retry-after"]) > 60


async def test_only_so_many_streams_at_once(checkpoint: Path, keys: str) -> None:
    async with open_site(checkpoint, api_keys=keys) as site:
        released = site.cluster.hang_before(1)
        first = asyncio.create_task(ask(site, "bob-key"))
        await eventually(lambda: site.cluster.hanging)
        status, headers, body = await ask(site, "bob-key")
        assert (status, headers["retry-after"]) == (429, "1")
        assert "1 requests at once" in body["error"]["message"]
        released.set_result(None)
        assert (await first)[0] == 200
        assert (await ask(site, "bob-key"))[0] == 200


async def test_a_client_that_leaves_frees_its_place(checkpoint: Path, keys: str) -> None:
    async with open_site(checkpoint, api_keys=keys) as site:
        site.cluster.hang_before(1)
        first = asyncio.create_task(ask(site, "bob-key", stream=True))
        await eventually(lambda: site.cluster.hanging)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await eventually(lambda: bool(site.cluster.cancelled))
        site.cluster.before = lambda request, position: None
        async with asyncio.timeout(5):
            while (await ask(site, "bob-key"))[0] != 200:  # noqa: ASYNC110 the place is freed beside the answer
                await asyncio.sleep(0.01)


async def test_operators_endpoints_need_an_admin_key(
    checkpoint: Path, keys: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_site(checkpoint, api_keys=keys) as site:
        order = {"model": "tiny", "instances": 2}
        for key, status, code in (
            ("", 401, "invalid_api_key"),
            ("wrong", 401, "invalid_api_key"),
            ("alice-key", 403, "insufficient_permissions"),
        ):
            got, headers, body = await ask(site, key, "/admin/v1/scale", **order)
            assert (got, body["error"]["code"]) == (status, code)
            assert (headers.get("www-authenticate") == "Bearer") == (status == 401)
        headers = {"authorization": "Bearer ops-key"}
        async with site.http.post(f"{site.url}/admin/v1/scale", json=order, headers=headers) as answer:
            assert answer.status == 202
        assert len(site.cluster.scaled) == 1
        for path in ("/live", "/ready", "/metrics", "/version", "/docs", "/openapi.json"):
            async with site.http.get(site.url + path) as answer:
                assert answer.status != 401
        for path in ("/tokenize", "/detokenize"):
            assert (await ask(site, "", path))[0] == 401


@pytest.mark.parametrize(
    ("is_local", "headers", "is_open"),
    [
        (True, {b"host": b"127.0.0.1:8000"}, True),
        (True, {b"host": b"localhost"}, True),
        (True, {b"host": b"[::1]:8000"}, True),
        (False, {b"host": b"127.0.0.1:8000"}, False),
        (True, {b"host": b"127.0.0.1:8000", b"origin": b"https://evil.example"}, False),
        (True, {b"host": b"evil.example:8000"}, False),
        (True, {b"host": b"[["}, False),
        (True, {}, False),
    ],
)
def test_without_keys_operators_endpoints_are_for_this_machine_alone(
    is_local: bool, headers: dict[bytes, bytes], is_open: bool
) -> None:
    _, refusal = Guard(Keyring([]), SystemClock(), is_local).admit("/admin/v1/models", headers)
    assert (refusal is None) == is_open
    if isinstance(refusal, ApiError):
        assert (refusal.status, "--api-key" in str(refusal)) == (403, True)


async def test_without_keys_a_gateway_on_all_addresses_serves_but_takes_no_orders(checkpoint: Path) -> None:
    async with open_site(checkpoint, host="0.0.0.0") as site:
        assert (await site.post("/v1/completions", ASK))[0] == 200
        assert (await site.get("/admin/v1/models"))[0] == 403
