"""Processes are killed under load: every accepted stream ends complete, and with the tokens of an undisturbed run."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest

from livescale.services.supervisor.ports import free_port
from tests.checkpoints import tiny_checkpoint
from tests.system.conftest import System
from tests.system.deaths.conftest import TOKENS
from tests.system.structured import COUNT, structured_answers
from tests.system.under_load import (
    PATIENCE_SECONDS,
    SystemUnderLoad,
    another,
    counted,
    make_streams,
    register,
    remove,
)

BETWEEN_SECONDS = 0.6
RESUMED = "livescale_gateway_resumptions_total"


@pytest.mark.system
@pytest.mark.parametrize("deaths", [1, *(pytest.param(more, marks=pytest.mark.slow) for more in (2, 3))])
async def test_streams_of_killed_workers_go_on_elsewhere(rested: SystemUnderLoad, deaths: int) -> None:
    """When all three are killed, requests wait for the workers that are started again."""
    victims = [*rested.workers("serving"), *rested.workers("spare")][:deaths]
    await rested.under_load(f"{deaths} workers killed", *(rested.pids()[id] for id in victims))


@pytest.mark.system
async def test_streams_go_on_while_no_router_is_there(rested: SystemUnderLoad) -> None:
    await rested.under_load("routers killed", rested.pids()["router-0"], rested.pids()["router-1"])


@pytest.mark.system
async def test_streams_and_new_requests_go_on_while_the_other_services_die_in_turn(rested: SystemUnderLoad) -> None:
    victims = [rested.pids()[id] for id in ("registry-0", "planner-0", "monitor-0", "host-0")]
    await rested.under_load("registry, planner, monitor, host killed", *victims, apart=BETWEEN_SECONDS)
    await asyncio.to_thread(rested.rest, 2, 1)


@pytest.mark.system
async def test_streams_go_on_while_the_bus_is_away_and_nobody_dies_of_it(rested: SystemUnderLoad) -> None:
    before = rested.pids()
    await rested.under_load("nats-server killed", nats_pid(rested.system))
    await asyncio.to_thread(rested.rest, 2, 1)
    assert rested.pids() == before


@pytest.mark.system
async def test_a_killed_gateway_s_requests_are_stopped_and_another_serves_meanwhile(rested: SystemUnderLoad) -> None:
    port = free_port()
    with another(rested.system, "gateway", "gateway-1", "--port", str(port)):
        url = f"http://127.0.0.1:{port}"
        before = await aborted(url)
        async with endless(rested.system.url, 4):
            rested.kill("gateway-0")
            killed = time.monotonic()
            loading = asyncio.create_task(rested.load(url))
            while await aborted(url) < before + 4:
                assert time.monotonic() - killed < PATIENCE_SECONDS
                await asyncio.sleep(0.1)
            print(f"gateway killed: its requests ended within {time.monotonic() - killed:.1f} s")  # noqa: T201
        rested.check("gateway killed, at the other", await loading)


@pytest.mark.system
def test_in_bfloat16_too_a_stream_is_continued_bit_for_bit(rested: SystemUnderLoad) -> None:
    """And by the only worker of its model, which its requests wait for."""
    half = SystemUnderLoad(rested.system, make_streams("half", "bfloat16", 6, 120, "qwen2"))
    form = {"dtype": "bfloat16", "layout": "panels"}
    spec = {"name": "half", "path": str(tiny_checkpoint("qwen2")), "min_instances": 1, "max_instances": 1, **form}
    asyncio.run(register(rested.system.url, spec))
    try:
        half.rest(serving=3, spare=0)
        [victim] = [int(one["pid"]) for one in half.status["workers"] if one["model"] == "half"]
        asyncio.run(half.under_load("bfloat16, the only worker killed", victim))
    finally:
        asyncio.run(remove(rested.system.url, "half"))  # in another order other tests want its worker as a spare


def nats_pid(system: System) -> int:
    """Return the pid of the NATS server, a child of the supervisor."""
    for children in Path(f"/proc/{system.process.pid}/task").glob("*/children"):
        for pid in children.read_text().split():
            if "nats-server" in Path(f"/proc/{pid}/cmdline").read_text():
                return int(pid)
    raise AssertionError("no nats-server is running")


@asynccontextmanager
async def endless(url: str, count: int) -> AsyncIterator[None]:
    """Long streams that have begun, and whose connection may break."""
    body = {"model": "m", "prompt": [5] * 50, "max_tokens": 3_000, "ignore_eos": True, "stream": True}
    async with aiohttp.ClientSession() as session, AsyncExitStack() as open_streams:
        for _ in range(count):
            answer = await open_streams.enter_async_context(session.post(f"{url}/v1/completions", json=body))
            await answer.content.readline()
        yield


async def aborted(url: str) -> float:
    """Count the requests that workers ended because no client wanted them any more. Waits for the gateway to listen."""
    return await counted(url, "vllm:request_success_total{", "cancelled")


@pytest.mark.system
async def test_penalised_streams_of_a_killed_worker_keep_their_tokens_and_log_probabilities(
    rested: SystemUnderLoad,
) -> None:
    url = rested.system.url
    expected = await asyncio.gather(*(penalised(url, number) for number in range(4)))
    before, begun = await counted(url, RESUMED), asyncio.Barrier(5)
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
        asking = [group.create_task(penalised(url, number, begun)) for number in range(4)]
        await begun.wait()
        rested.kill(rested.workers("serving")[0])
    assert [one.result() for one in asking] == expected
    assert await counted(url, RESUMED) > before
    assert len({tuple(tokens) for tokens, _ in expected}) == 4


@pytest.mark.system
async def test_answers_by_a_schema_keep_their_tokens_when_a_worker_is_killed(rested: SystemUnderLoad) -> None:
    url = rested.system.url
    expected = await structured_answers(url)
    before, begun = await counted(url, RESUMED), asyncio.Barrier(COUNT + 1)
    async with asyncio.timeout(PATIENCE_SECONDS):
        asking = asyncio.create_task(structured_answers(url, begun=begun))
        await begun.wait()
        rested.kill(rested.workers("serving")[0])
        assert await asking == expected
    assert await counted(url, RESUMED) > before
    assert len(set(map(tuple, expected))) == COUNT


async def penalised(url: str, number: int, begun: asyncio.Barrier | None = None) -> tuple[list[int], list[object]]:
    """The tokens of a stream and what is told of them. `begun` is waited for once after some of them."""
    body = {
        "model": "m",
        "prompt": [7 + number] * 40,
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
        "seed": number,
        "temperature": 0.8 if number else 0.0,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.2,
        "logprobs": 3,
    }
    tokens, told = list[int](), list[object]()
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            choice = msgspec.json.decode(line[6:])["choices"][0]
            tokens += choice["token_ids"]
            names, likely, top = (choice["logprobs"][name] for name in ("tokens", "token_logprobs", "top_logprobs"))
            told += zip(names, likely, top, strict=True)
            if begun is not None and len(tokens) >= 20:
                await begun.wait()
                begun = None
    return tokens, told
