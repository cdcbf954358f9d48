"""API keys, the rights and limits that they give, and how clients of a gateway meet them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from livescale.services.gateway.access import ApiKey, BadKeys, Guard, Keyring, parse_key, read_keys
from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.openapi import Document
from livescale.shared.runtime.clock import SystemClock
from tests.gateway.conftest import ServedGateway, eventually, serve_gateway

FILE = """
- {name: alice, key: alice-secret, requests-per-minute: 60, tokens-per-minute: 1000, max-concurrent: 2}
- {name: ops, key: ops-secret, admin: true}
"""

ASK = {"model": "tiny", "prompt": "abc", "max_tokens": 4}
KEYS = """
- {name: alice, key: alice-key, requests-per-minute: 3, tokens-per-minute: 600}
- {name: bob, key: bob-key, max-concurrent: 1}
- {name: small, key: small-key, tokens-per-minute: 10}
- {name: ops, key: ops-key, admin: true}
"""


def written(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("text", "name", "key", "admin"),
    [
        ("sesame", "default", "sesame", True),
        ("alice=sesame", "alice", "sesame", False),
        ("admin=sesame", "admin", "sesame", True),
        ("c2VzYW1l==", "default", "c2VzYW1l==", True),
        ("alice=c2Vz=", "alice", "c2Vz=", False),
        ("sk-1=2", "sk-1", "2", False),
    ],
)
def test_keys_are_given_bare_or_by_name(text: str, name: str, key: str, admin: bool) -> None:
    parsed = parse_key(text)
    assert (parsed.name, parsed.key, parsed.admin) == (name, key, admin)


def test_keys_of_flag_and_file_are_known_and_others_are_not(tmp_path: Path) -> None:
    keys = read_keys(["bob=bob-secret"], written(tmp_path / "keys.yaml", FILE))
    alice, ops = keys.find(b"alice-secret"), keys.find(b"ops-secret")
    assert alice is not None
    assert ops is not None
    assert (alice.name, alice.is_admin, ops.is_admin) == ("alice", False, True)
    assert dict(alice.quota.headers(0.0))["x-ratelimit-limit-requests"] == "60"
    assert keys.find(b"bob-secret") is not None
    for wrong in (b"", b"alice", b"alice-secret ", b"alice=alice-secret", b"\xff\x00"):
        assert keys.find(wrong) is None


def test_every_key_is_compared_whichever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return one == other

    keys = Keyring(ApiKey(name=f"k{index}", key=f"secret-{index}") for index in range(5))
    monkeypatch.setattr("livescale.services.gateway.access.hmac.compare_digest", compare)
    for presented in (b"secret-0", b"secret-4", b"other"):
        compared.clear()
        keys.find(presented)
        assert len(set(compared)) == 5
        assert {len(each) for each in compared} == {32}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- {name: a, key: sec-ret, limit: 5}", "unknown field `limit` - at `$[0]`"),
        ("- {name: a}", "missing required field `key`"),
        ("- {name: a, key: sec-ret, requests-per-minute: 0}", "Expected `int` >= 1 - at `$[0].requests-per-minute`"),
        ("- {name: 'a b', key: sec-ret}", "`$[0].name`"),
        ("- {name: a, key: 'sec-ret two'}", "the key of 'a' must be printable ASCII"),
        ("- {name: a, key: ''}", "the key of 'a' must be printable ASCII"),
        ("- {name: a, key: sec-ret}\n- {name: a, key: x}", "two keys named 'a'"),
        ("- {name: a, key: sec-ret}\n- {name: b, key: sec-ret}", "'a' and 'b' have the same key"),
        ("- {name: a, key: sec-ret", "is not YAML, line 1"),
        ("sec-ret", "Expected `array`, got `str`"),
    ],
)
def test_a_mistake_in_the_file_is_named_without_the_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadKeys) as caught:
        read_keys([], written(tmp_path / "keys.yaml", text))
    assert said in str(caught.value)
    assert "sec-ret" not in str(caught.value)


def test_a_file_that_everybody_can_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadKeys, match="chmod o-r"):
        read_keys([], written(tmp_path / "keys.yaml", FILE, 0o644))
    assert read_keys([], written(tmp_path / "keys.yaml", FILE, 0o640))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadKeys, match=r"nowhere\.yaml: No such file"):
        read_keys([], str(tmp_path / "nowhere.yaml"))


def test_no_key_shows_itself() -> None:
    assert "sesame" not in repr(parse_key("alice=sesame"))


@pytest.fixture
def keys(tmp_path: Path) -> str:
    path = tmp_path / "keys.yaml"
    path.write_text(KEYS)
    path.chmod(0o600)
    return str(path)


async def ask(
    served: ServedGateway, key: str, path: str = "/v1/completions", **changes: Any
) -> tuple[int, dict[str, str], Document]:
    headers = {"authorization": f"Bearer {key}"}
    async with served.http.post(served.url + path, json=ASK | changes, headers=headers) as answer:
        return answer.status, {k.lower(): v for k, v in answer.headers.items()}, await answer.json()


async def test_requests_over_the_limit_are_told_when_to_come_back(checkpoint: Path, keys: str) -> None:
    async with serve_gateway(checkpoint, api_keys=keys) as served:
        for left in (2, 1, 0):
            status, headers, _ = await ask(served, "alice-key")
            assert (status, headers["x-ratelimit-remaining-requests"]) == (200, str(left))
            assert headers["x-ratelimit-limit-requests"] == "3"
        status, headers, body = await ask(served, "alice-key")
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
        assert (await ask(served, "bob-key"))[0] == 200
        assert 'rejections_total{code="rate_limit_exceeded"} 1.0' in served.gateway._world.telemetry.exposition()


async def test_tokens_are_reserved_and_corrected_at_the_end(checkpoint: Path, keys: str) -> None:
    async with serve_gateway(checkpoint, api_keys=keys) as served:
        served.cluster.output = [5]
        released = served.cluster.hang_before(2)
        running = asyncio.create_task(ask(served, "alice-key", prompt=[5] * 20, max_tokens=200))
        await eventually(lambda: served.cluster.hanging)
        _, headers, _ = await ask(served, "alice-key", "/tokenize", prompt="a", max_tokens=None)
        assert int(headers["x-ratelimit-remaining-tokens"]) in range(380, 390)
        served.cluster.output = served.cluster.submitted[0].stop_token_ids
        released.set_result(None)
        assert (await running)[2]["usage"]["total_tokens"] == 23
        _, headers, _ = await ask(served, "alice-key", "/tokenize", prompt="a", max_tokens=None)
        assert int(headers["x-ratelimit-remaining-tokens"]) in range(577, 590)


async def test_the_prompt_of_several_choices_is_reserved_once(checkpoint: Path, keys: str) -> None:
    async with serve_gateway(checkpoint, api_keys=keys) as served:
        released = served.cluster.hang_before(0)
        running = asyncio.create_task(ask(served, "alice-key", prompt=[5] * 100, max_tokens=10, n=4))
        await eventually(lambda: served.cluster.hanging)
        _, headers, _ = await ask(served, "alice-key", "/tokenize", prompt="a", max_tokens=None)
        assert int(headers["x-ratelimit-remaining-tokens"]) in range(460, 470)
        released.set_result(None)
        assert (await running)[2]["usage"]["total_tokens"] == 140


async def test_a_request_that_was_never_served_costs_no_tokens(checkpoint: Path, keys: str) -> None:
    async with serve_gateway(checkpoint, api_keys=keys) as served:
        status, headers, _ = await ask(served, "small-key", max_tokens=5000)
        assert (status, headers["x-ratelimit-remaining-tokens"]) == (400, "10")
        status, headers, _ = await ask(served, "small-key", prompt=[5, 6, 7], max_tokens=40)
        assert status == 200
        status, headers, body = await ask(served, "small-key", prompt=[5], max_tokens=1)
        assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
        assert "10 tokens a minute" in body["error"]["message"]
        assert int(headers["retry-after"]) > 60


async def test_only_so_many_streams_at_once(checkpoint: Path, keys: str) -> None:
    async with serve_gateway(checkpoint, api_keys=keys) as served:
        released = served.cluster.hang_before(1)
        first = asyncio.create_task(ask(served, "bob-key"))
        await eventually(lambda: served.cluster.hanging)
        status, headers, body = await ask(served, "bob-key")
        assert (status, headers["retry-after"]) == (429, "1")
        assert "1 requests at once" in body["error"]["message"]
        released.set_result(None)
        assert (await first)[0] == 200
        assert (await ask(served, "bob-key"))[0] == 200


async def test_a_client_that_leaves_frees_its_place(checkpoint: Path, keys: str) -> None:
    async with serve_gateway(checkpoint, api_keys=keys) as served:
        served.cluster.hang_before(1)
        first = asyncio.create_task(ask(served, "bob-key", stream=True))
        await eventually(lambda: served.cluster.hanging)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await eventually(lambda: bool(served.cluster.cancelled))
        served.cluster.before = lambda request, position: None
        async with asyncio.timeout(60):
            while (await ask(served, "bob-key"))[0] != 200:  # noqa: ASYNC110 the place is freed beside the answer
                await asyncio.sleep(0.01)


async def test_operators_endpoints_need_an_admin_key(
    checkpoint: Path, keys: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serve_gateway(checkpoint, api_keys=keys) as served:
        order = {"model": "tiny", "instances": 2}
        for key, status, code in (
            ("", 401, "invalid_api_key"),
            ("wrong", 401, "invalid_api_key"),
            ("alice-key", 403, "insufficient_permissions"),
        ):
            got, headers, body = await ask(served, key, "/admin/v1/scale", **order)
            assert (got, body["error"]["code"]) == (status, code)
            assert (headers.get("www-authenticate") == "Bearer") == (status == 401)
        headers = {"authorization": "Bearer ops-key"}
        async with served.http.post(f"{served.url}/admin/v1/scale", json=order, headers=headers) as answer:
            assert answer.status == 202
        assert len(served.cluster.scaled) == 1
        for path in ("/live", "/ready", "/metrics", "/version", "/docs", "/openapi.json"):
            async with served.http.get(served.url + path) as answer:
                assert answer.status != 401
        for path in ("/tokenize", "/detokenize"):
            assert (await ask(served, "", path))[0] == 401


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
    async with serve_gateway(checkpoint, host="0.0.0.0") as served:
        assert (await served.post("/v1/completions", ASK))[0] == 200
        assert (await served.get("/admin/v1/models"))[0] == 403
