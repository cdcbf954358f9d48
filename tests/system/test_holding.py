"""Requests are held, shed, and cut off: two models that sleep, one worker, everything real."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from tests.checkpoints import tiny_checkpoint
from tests.system.conftest import MIB, System, started

PATIENCE_SECONDS = 120.0
IDLE_SECONDS = 2.0
UNREAD_SECONDS = 2.0
ESTABLISHED = b"\x01"  # the first byte of Linux's tcp_info


@pytest.fixture(scope="module")
def sleepy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Models `m` and `n` at zero; the one worker has room for one of them, and for neither in float32."""
    with started(
        tmp_path_factory.mktemp("holding"),
        *("--workers", "1", "--min-instances", "0", "--arena-bytes", str(3 * MIB), "--dtype", "bfloat16"),
        *("--model", f"n={tiny_checkpoint('llama')}"),
        environment={"LIVESCALE_UNREAD_TIMEOUT_S": str(UNREAD_SECONDS), "LIVESCALE_MAX_WAITING": "2"},
    ) as running:
        yield running


@pytest.fixture
async def http(sleepy: System) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=PATIENCE_SECONDS)
    async with aiohttp.ClientSession(sleepy.url, timeout=timeout) as session:
        for name in "mn":
            await register(session, name)
        yield session


async def register(http: aiohttp.ClientSession, name: str, dtype: str = "bfloat16") -> None:
    spec = {"name": name, "path": str(tiny_checkpoint("llama")), "dtype": dtype, "min_instances": 0, "max_instances": 1}
    delay = {"downscale_to_zero_delay_s": IDLE_SECONDS}
    async with http.post("/admin/v1/models", json={"type": "ModelSpec", **spec, **delay}) as answer:
        assert answer.status == 201, await answer.text()


def body(model: str, tokens: int = 8, **more: object) -> dict[str, object]:
    common = {"prompt": [5, 6, 7], "ignore_eos": True, "temperature": 0, "return_token_ids": True, "stream": True}
    return {"model": model, "max_tokens": tokens, **common, **more}


async def stream(http: aiohttp.ClientSession, ask: dict[str, object]) -> list[bytes]:
    """The lines of a stream that are not empty."""
    async with http.post("/v1/completions", json=ask) as answer:
        assert answer.status == 200, await answer.text()
        return [line.strip() async for line in answer.content if line.strip()]


def token_ids(lines: list[bytes]) -> list[int]:
    assert lines[-1] == b"data: [DONE]", lines[-1]
    chunks = [json.loads(line[6:]) for line in lines[:-1] if line.startswith(b"data: ")]
    return [id for chunk in chunks for id in chunk["choices"][0]["token_ids"]]


async def eventually(system: System, holds: Callable[[dict[str, Any]], bool]) -> None:
    """Wait for what `status` shows."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds(await asyncio.to_thread(system.status)):  # noqa: ASYNC110  # another process's state
            await asyncio.sleep(0.1)


def sleeps(status: dict[str, Any]) -> bool:
    return [worker["state"] for worker in status["workers"]] == ["spare"]


@pytest.mark.system
async def test_a_request_wakes_a_model_once_and_calm_puts_it_to_sleep(
    sleepy: System, http: aiohttp.ClientSession
) -> None:
    await eventually(sleepy, sleeps)
    decisions, scales = await told(sleepy)
    woken = token_ids(await stream(http, body("m")))
    assert len(woken) == 8
    assert token_ids(await stream(http, body("m"))) == woken
    await eventually(sleepy, sleeps)
    decided, done = await told(sleepy)
    assert decided[len(decisions) :] == [("out", 0, 1), ("in", 1, 0)]
    assert done[len(scales) :] == ["done", "done"]


async def told(system: System) -> tuple[list[tuple[str, int, int]], list[str]]:
    """What `why` tells of `m`: the decisions to change something, and the states of scales, oldest first."""
    found = json.loads((await asyncio.to_thread(system.command, "why", "m", "--limit", "1000", "--json")).stdout)
    decisions = [
        (one["action"], one["current"], one["target"]) for one in found["decisions"] if one["action"] != "hold"
    ]
    return decisions, [scale["state"] for scale in found["scales"]]


@pytest.mark.system
async def test_what_cannot_be_placed_is_held_bounded_and_said(sleepy: System, http: aiohttp.ClientSession) -> None:
    """`m` keeps the only worker busy; requests for `n` wait, the third is one too many."""
    await stream(http, body("m"))
    busy = asyncio.create_task(keep_busy(http, "m"))
    late = asyncio.create_task(stream(http, body("n", timeout=8)))
    held = asyncio.create_task(stream(http, body("n")))
    await until_waiting(http, "n", 2)
    async with http.post("/v1/completions", json=body("n")) as refused:
        assert refused.status == 429
        assert (await refused.json())["error"]["code"] == "queue_full"
        assert int(refused.headers["retry-after"]) >= 1
        assert 100 <= int(refused.headers["retry-after-ms"]) <= 60_000
    said = queue(await asyncio.to_thread(sleepy.status), "n")["scaling"]
    assert said.startswith("hold at 0: 1 wanted, no spare worker fits")
    assert "no spare worker fits" in (await asyncio.to_thread(sleepy.command, "why", "n")).stdout
    lines = await late
    assert lines[0] == b": waiting"
    assert b'"code":"timeout"' in lines[-1]
    busy.cancel()
    await asyncio.wait([busy])
    # `m` goes to sleep, and `n` wakes for what is still held.
    lines = await held
    assert lines[0] == b": waiting"
    assert len(token_ids(lines)) == 8


async def keep_busy(http: aiohttp.ClientSession, model: str) -> None:
    while True:
        await stream(http, body(model, 1_000))


async def until_waiting(http: aiohttp.ClientSession, model: str, count: int) -> None:
    """By the router's metric: `status` is a process of its own, and slower than what is looked at."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await waiting(http, model) != count:  # noqa: ASYNC110  # another process's state
            await asyncio.sleep(0.05)


async def waiting(http: aiohttp.ClientSession, model: str) -> float:
    async with http.get("/metrics/all") as answer:
        lines = (await answer.text()).splitlines()
    depths = [line for line in lines if line.startswith("livescale_router_queue_depth{") and f'"{model}"' in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in depths)


def queue(status: dict[str, Any], model: str) -> dict[str, Any]:
    row: dict[str, Any] = next(row for row in status["queues"] if row["model"] == model)
    return row


@pytest.mark.system
async def test_a_model_that_fits_nowhere_is_refused_as_it_is_registered(http: aiohttp.ClientSession) -> None:
    spec = {"name": "wide", "path": str(tiny_checkpoint("llama")), "dtype": "float32"}
    asked = time.monotonic()
    async with http.post("/admin/v1/models", json=spec) as answer:
        assert answer.status == 409
        assert "or more" in (await answer.json())["error"]["message"].partition("start workers with --arena-bytes ")[2]
    assert time.monotonic() - asked < 60
    async with http.post("/v1/completions", json=body("wide", stream=False)) as answer:
        assert answer.status == 404


@pytest.mark.system
async def test_a_client_that_never_reads_is_cut_off_and_costs_others_nothing(
    sleepy: System, http: aiohttp.ClientSession
) -> None:
    before = token_ids(await stream(http, body("m")))
    with never_reading(sleepy, body("m", 3_000, prompt=[[5]] * 4)) as client:
        for _ in range(5):
            assert token_ids(await stream(http, body("m"))) == before
        await asyncio.to_thread(wait_until_closed, client)
    await eventually(sleepy, lambda status: queue(status, "m")["running"] == 0)


def never_reading(system: System, ask: dict[str, object]) -> socket.socket:
    """A connection with a small window that has sent its request."""
    host, port = system.url.removeprefix("http://").split(":")
    data = json.dumps(ask).encode()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((host, int(port)))
    client.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    return client


def wait_until_closed(client: socket.socket) -> None:
    """Without reading: the state of the connection as the kernel has it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == ESTABLISHED:
        assert time.monotonic() < deadline, "the connection of a client that never reads is kept"
        time.sleep(0.1)
    with suppress(ConnectionResetError):
        client.recv(1)
