"""The gateway's HTTP server against clients that are slow, enormous, many, or do not speak HTTP."""

import asyncio
import json
import os
import resource
import sys
import time
from asyncio.subprocess import PIPE, create_subprocess_exec
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from livescale.services.gateway import parse, protocol
from livescale.services.gateway.server import allow_connections
from tests.gateway.conftest import ServedGateway, eventually, port_of, serve_gateway

MIB = 1 << 20
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"
ASK = b'{"model": "tiny", "prompt": "abc", "max_tokens": 2}'
WHOLE = HEAD + b"content-length: %d\r\n\r\n" % len(ASK) + ASK
IDLE, STEP, CROWDS, SPARE = 10_000, 500, 2, 500
CROWD = """
import resource, socket, sys
port = int(sys.argv[1])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
for line in sys.stdin:
    held += [socket.create_connection(("127.0.0.1", port), 60) for _ in range(int(line))]
    print(len(held), flush=True)
"""


@pytest.fixture
async def served() -> AsyncIterator[ServedGateway]:
    from tests.checkpoints import tiny_checkpoint

    async with serve_gateway(tiny_checkpoint("qwen2")) as opened:
        yield opened


async def answers(served: ServedGateway, *parts: bytes, pause: float = 0.0) -> list[tuple[int, Any]]:
    """What a connection gets that sends these bytes: status and body of each answer until it is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(served))
    try:
        async with asyncio.timeout(60):
            with suppress(ConnectionError):  # refused before all was sent
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(pause)  # as a slow sender
            with suppress(ConnectionError):
                return await read_answers(reader, len(parts))
            return []
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def read_answers(reader: asyncio.StreamReader, count: int) -> list[tuple[int, Any]]:
    got: list[tuple[int, Any]] = []
    while len(got) < count and (line := await reader.readline()).startswith(b"HTTP/1.1 "):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length: ")[1].split("\r")[0])
        got.append((int(line.split()[1]), json.loads(await reader.readexactly(length))))
        if "connection: close" in head:
            break
    return got


def refused(status: int, code: str, got: list[tuple[int, Any]]) -> bool:
    return [(status, code)] == [(one, body["error"]["code"]) for one, body in got]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),  # a TLS greeting
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: here\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nhost: here\r\n\r\n",
        b"CONNECT example.org:443 HTTP/1.1\r\nhost: here\r\n\r\n",
        HEAD + b"content-length: -5\r\n\r\n",
        HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
        HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\nhello",
        HEAD + b"transfer-encoding: chunked\r\n\r\nnot a size\r\n",
        HEAD + b"no colon here\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_refused_in_json_and_closed(served: ServedGateway, data: bytes) -> None:
    assert refused(400, "invalid_http", await answers(served, data))
    assert await answers(served, WHOLE)


@pytest.mark.parametrize(
    "bomb",
    [
        [HEAD + b"x: 1\r\n" * 200 + b"\r\n"],
        [HEAD + b"x: " + b"y" * 100_000 + b"\r\n\r\n"],
        [b"GET /" + b"y" * 100_000 + b" HTTP/1.1\r\n\r\n"],
        [HEAD + b"x: ", *[b"y" * 50_000] * 100],
        [HEAD, *[b"y" * 50_000] * 100],
    ],
    ids=["too many", "one too large", "a long path", "a value without end", "a name without end"],
)
async def test_bombs_of_headers_are_refused(served: ServedGateway, bomb: list[bytes]) -> None:
    assert refused(431, "headers_too_large", await answers(served, *bomb))


async def test_many_requests_on_one_connection_are_no_bomb(served: ServedGateway) -> None:
    got = await answers(served, *[WHOLE] * 300)
    assert [status for status, _ in got] == [200] * 300


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ([], None),
        ([b"\r\n"] * 8, None),
        ([b"P", b"OST /v1/comp"], 408),
        ([HEAD, b"x: 1\r\n", b"x: 1\r\n"], 408),
        ([HEAD + b"content-length: 500\r\n\r\n", b"{", b" "], 408),
        ([HEAD + b"transfer-encoding: chunked\r\n\r\n", b"1\r\n{\r\n"], 408),
    ],
)
async def test_a_client_that_sends_slowly_is_closed_in_bounded_time(
    served: ServedGateway, monkeypatch: pytest.MonkeyPatch, parts: list[bytes], status: int | None
) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(parse, "BODY_TIMEOUT_SECONDS", 0.3)
    began = time.monotonic()
    got = await answers(served, *parts, pause=0.05)
    assert time.monotonic() - began < 60
    assert got == [] if status is None else refused(status, "timeout", got)


@pytest.mark.parametrize("begun", [HEAD, b"P"])
async def test_a_later_head_has_to_come_whole_too(
    served: ServedGateway, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.3)
    for parts in ([WHOLE, begun], [WHOLE + begun, b""]):
        began = time.monotonic()
        got = [status for status, _ in await answers(served, *parts, pause=0.1)]
        assert time.monotonic() - began < 60
        assert got == [200, 408]


async def test_a_slow_reader_of_an_answer_is_no_slow_sender(
    served: ServedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.5)
    going = served.cluster.hang_before(1)
    asking = asyncio.create_task(answers(served, WHOLE + b"\r\n"))  # some clients end a body so
    await asyncio.sleep(1.0)  # longer than a slow sender is given
    going.set_result(None)
    assert [status for status, _ in await asking] == [200]


async def a_hundred_megabytes() -> AsyncIterator[bytes]:
    chunk = bytes(MIB)
    for _ in range(100):
        yield chunk


@pytest.mark.parametrize("headers", [{"content-length": str(100 * MIB)}, {}], ids=["announced", "in chunks"])
async def test_a_hundred_megabytes_are_refused_at_once_and_not_kept(
    served: ServedGateway, headers: dict[str, str], record_property: Any
) -> None:
    before, began = resident_bytes(), time.monotonic()
    url = f"{served.url}/v1/completions"
    async with served.http.post(url, data=a_hundred_megabytes(), headers=headers) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (413, "request_too_large")
        assert answer.headers["connection"] == "close"
    took = time.monotonic() - began
    record_property("seconds_to_413", took)
    assert took < 60
    assert resident_bytes() - before < 30 * MIB


@pytest.fixture
def descriptors() -> Iterator[None]:
    """As many as a gateway's process allows itself, which must be more than it is to hold."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allow_connections() < IDLE + SPARE:
        pytest.skip(f"a process may have {before[1]} files open here, and this takes {IDLE + SPARE}")
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@asynccontextmanager
async def crowd(port: int, count: int) -> AsyncIterator[None]:
    """Connections that say nothing, held by processes of their own."""
    program = [sys.executable, "-c", CROWD, str(port)]
    members = [await create_subprocess_exec(*program, stdin=PIPE, stdout=PIPE) for _ in range(CROWDS)]
    try:
        for number in range(count // STEP):
            member = members[number % CROWDS]
            assert member.stdin is not None
            assert member.stdout is not None
            member.stdin.write(b"%d\n" % STEP)  # no more than the kernel keeps waiting for the gateway
            assert await asyncio.wait_for(member.stdout.readline(), 60)
        yield
    finally:
        await asyncio.gather(*(member.communicate(b"") for member in members))  # the end of their stdin ends them


async def test_ten_thousand_idle_connections_cost_others_nothing(
    served: ServedGateway, monkeypatch: pytest.MonkeyPatch, record_property: Any, descriptors: None
) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 600.0)
    before = resident_bytes()
    async with crowd(port_of(served), IDLE), aiohttp.ClientSession() as fresh:
        await eventually(lambda: open_files() > IDLE)
        grown, began = resident_bytes() - before, time.monotonic()
        async with fresh.post(f"{served.url}/v1/completions", data=ASK) as answer:
            assert answer.status == 200
        record_property("seconds_served_meanwhile", time.monotonic() - began)
        record_property("bytes_each", grown // IDLE)
        assert open_files() > IDLE
        assert grown < IDLE * 20_000
    await eventually(lambda: open_files() < SPARE)


async def test_idle_connections_are_closed_in_bounded_time(
    served: ServedGateway, monkeypatch: pytest.MonkeyPatch, descriptors: None
) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 1.0)
    async with crowd(port_of(served), 1_000):
        await eventually(lambda: open_files() < SPARE)
        assert await answers(served, WHOLE)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
