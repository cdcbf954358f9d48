"""Bodies that are JSON only just, or not at all: each is answered as documented, none is a 5xx."""

import pytest
from yarl import URL

from tests.checkpoints import tiny_checkpoint
from tests.gateway.conftest import ServedGateway, serve_gateway

REFUSED = [
    b"",
    b"\xff\xfe",
    b'{"model": "tiny", "prompt": "\xff"}',
    b'{"model": "tiny", "prompt": "\\ud800"}',
    b'{"model": "tiny", "prompt": "a", "stop": ["\\udc00"]}',
    b'{"model": "tiny", "prompt": "a\0b"}',
    b'{"model": "tiny", "prompt": ' + b"[" * 150_000,
    b'{"a":' * 150_000,
    b'{"model": "tiny", "prompt": "a", "max_tokens": ' + b"9" * 5_000 + b"}",
    b'{"model": "tiny", "prompt": "a", "max_tokens": 1e999}',
    b'{"model": "tiny", "prompt": "a", "temperature": NaN}',
    b'{"model": "tiny", "prompt": "a", "seed": 18446744073709551616}',
    b'{"model": "tiny", "prompt": "a", "timeout": -1}',
    b'{"model": "tiny", "prompt": [' + b"1e400," * 9 + b"1]}",
]
TAKEN = [
    b'{"model": "tiny", "prompt": "a\\u0000b", "max_tokens": 1}',
    b'{"model": "tiny", "prompt": "a", "stop": ["\\u0000"], "max_tokens": 1}',
    b'{"model": "other", "model": "tiny", "prompt": "a", "max_tokens": 1}',  # the last counts, as everywhere
    b'{"model": "tiny", "prompt": "a", "max_tokens": 1, "timeout": 1e300}',
    b'{"model": "tiny", "prompt": "a", "max_tokens": 1, "seed": -9223372036854775808}',
]


async def status_of(served: ServedGateway, body: bytes) -> tuple[int, str | None]:
    async with served.http.post(f"{served.url}/v1/completions", data=body) as answer:
        return answer.status, (await answer.json()).get("error", {}).get("type")


async def test_bodies_at_the_edge_are_refused_or_taken() -> None:
    async with serve_gateway(tiny_checkpoint("qwen2")) as served:
        for body in REFUSED:
            assert await status_of(served, body) == (400, "invalid_request_error"), body[:60]
        for body in TAKEN:
            assert await status_of(served, body) == (200, None), body[:60]


@pytest.mark.parametrize("path", ["/v1/models/%00", "/v1/models/" + "x" * 8_000, "/v1/models/%ff%fe", "/%2e%2e/%2e%2e"])
async def test_strange_paths_are_not_found(path: str) -> None:
    async with (
        serve_gateway(tiny_checkpoint("qwen2")) as served,
        served.http.get(URL(served.url + path, encoded=True)) as answer,
    ):
        assert (answer.status, (await answer.json())["error"]["type"]) == (404, "invalid_request_error")
