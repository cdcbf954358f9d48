"""The main job, with everything real: processes, nats-server, UCX, the REST gateway, the official client."""

import asyncio
import json
import random
import signal
import time
from pathlib import Path

import aiohttp
import openai
import pytest

from livescale.load.client import LoadClient, open_session, send_open_loop
from livescale.load.records import Ask, RequestRecord, find_fault
from livescale.load.rightness import CheckedStream, check_streams
from livescale.load.stats import Tally
from livescale.shared.runtime.clock import SystemClock
from tests.checkpoints import tiny_checkpoint
from tests.system.conftest import System, start, stop
from tests.system.test_hung import hang

PATIENCE_SECONDS = 120.0


def asks(count: int, rate: float, seed: int) -> list[Ask]:
    """Requests of 1 to 400 tokens, `rate` a second."""
    chance = random.Random(seed)
    return [
        Ask(index, index / rate, chance.choices(range(1_000), k=chance.choice([1, 7, 60, 200, 400])), 24)
        for index in range(count)
    ]


async def send(system: System, requests: list[Ask]) -> dict[int, RequestRecord]:
    records: list[RequestRecord] = []
    async with open_session(system.url, "", 60.0) as session:
        await send_open_loop(LoadClient(session, "m", SystemClock(), Tally()), requests, records)
    return {record.index: record for record in records}


def workers(system: System, state: str) -> list[str]:
    return [worker["id"] for worker in system.status()["workers"] if worker["state"] == state]


def wait_until_one_serves(system: System) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (len(workers(system, "serving")) == 1 and len(workers(system, "spare")) == 1):
        assert time.monotonic() < deadline, "the system did not come to rest"
        time.sleep(0.2)


def maps_shared_memory(pid: int) -> bool:
    return "/memfd:livescale" in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.system
async def test_tokens_stay_the_same_and_right_while_the_model_scales_out_and_in(system: System) -> None:
    requests = asks(40, 10.0, seed=1)
    alone = await send(system, [Ask(ask.index, 0.0, ask.prompt, 24) for ask in requests[:1]])
    sending = asyncio.create_task(send(system, requests))
    await asyncio.sleep(1)
    scaled = await asyncio.to_thread(system.command, "scale", "m", "--instances", "2", "--wait")
    assert (
        "done" in scaled.stdout or "there are already 2 instances" in scaled.stdout
    )  # the monitor may have been first
    pids = {process["id"]: process["pid"] for process in system.status()["processes"]}
    assert {maps_shared_memory(pids[id]) for id in workers(system, "serving")} == {True}
    assert "MB shared" in system.command("why", "m").stdout  # with the host, on one machine and unshaped
    paths = {path for worker in system.status()["workers"] for path in worker["paths"].values()}
    assert "mapped" in paths
    assert paths <= {"mapped", "cma", "posix", "sysv", "tcp"}
    records = await sending
    assert [fault for record in records.values() if (fault := find_fault(record))] == []
    assert records[0].token_ids == alone[0].token_ids
    streams = [CheckedStream(prompt=ask.prompt, generated=records[ask.index].token_ids) for ask in requests]
    verdict = check_streams(tiny_checkpoint("llama"), streams, "float32")
    assert verdict.ok, str(verdict)
    # And the other way: again with draining under way.
    sending = asyncio.create_task(send(system, requests))
    await asyncio.sleep(1)
    await asyncio.to_thread(system.command, "scale", "m", "--instances", "1", "--wait")
    again = await sending
    assert {index: record.token_ids for index, record in again.items()} == {
        index: record.token_ids for index, record in records.items()
    }
    await asyncio.to_thread(wait_until_one_serves, system)
    # The one that serves may have come back meanwhile, with parameters that it had kept in memory of its own.
    assert [maps_shared_memory(pids[id]) for id in workers(system, "spare")] == [False]


@pytest.mark.system
def test_the_official_client_lists_models_completes_and_streams(system: System) -> None:
    with openai.OpenAI(base_url=f"{system.url}/v1", api_key="none") as client:
        assert [model.id for model in client.models.list()] == ["m"]
        whole = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hello"}], max_tokens=8, temperature=0
        )
        chunks = client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=8,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        text, usage = "", None
        for chunk in chunks:
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            usage = chunk.usage or usage
        assert text == whole.choices[0].message.content
        assert usage is not None
        assert whole.usage is not None
        assert usage.completion_tokens == whole.usage.completion_tokens
        with pytest.raises(openai.NotFoundError) as refused:
            client.completions.create(model="other", prompt="x")
        assert refused.value.code == "model_not_found"


@pytest.mark.system
async def test_a_client_that_leaves_frees_its_request(system: System) -> None:
    body = {"model": "m", "prompt": [5] * 50, "max_tokens": 3_000, "ignore_eos": True, "stream": True}
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{system.url}/v1/completions", json=body) as response:
            await response.content.readline()
            assert running(await scrape(session, system)) == 1
        async with asyncio.timeout(PATIENCE_SECONDS):
            while running(await scrape(session, system)):  # noqa: ASYNC110  # another process's state
                await asyncio.sleep(0.05)


async def scrape(session: aiohttp.ClientSession, system: System) -> str:
    async with session.get(f"{system.url}/metrics/all") as response:
        return await response.text()


def running(metrics: str) -> float:
    lines = [line for line in metrics.splitlines() if line.startswith("vllm:num_requests_running{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


@pytest.mark.system
def test_status_why_and_tap_show_what_goes_on(system: System) -> None:
    status = json.loads(system.command("status", "--json").stdout)
    services = sorted(process["service"] for process in status["processes"])
    assert services == ["gateway", "host", "monitor", "planner", "registry", "router", "worker", "worker"]
    serving = next(worker for worker in status["workers"] if worker["state"] == "serving")
    assert serving["model"] == "m"
    assert serving["ready"] == serving["total"] == 5
    assert status["instances"][0]["workers"] == [serving["id"]]
    assert "minimum: 0 of at least 1 instances" in system.command("why", "m").stdout
    assert json.loads(system.command("why", "m", "--json").stdout)
    assert "hb.worker" in system.command("tap", "--subject", "hb.worker.>", "--limit", "2").stdout
    wrong = system.command("scale", "other", "--instances", "2", check=False)
    assert wrong.returncode != 0
    assert "other" in wrong.stderr


@pytest.mark.system
def test_a_router_that_hangs_is_started_again_and_all_is_served(system: System) -> None:
    hang(system, "router-0")


@pytest.mark.system
def test_a_second_system_on_the_same_bus_is_refused_and_disturbs_nothing(system: System) -> None:
    before = system.pids()
    words = ("up", "--model", f"m={tiny_checkpoint('llama')}", "--port", "0")
    refused = system.command(*words, check=False)
    assert refused.returncode == 1
    assert "in the namespace 'default'" in refused.stderr
    assert "choose another --namespace, or end that one" in refused.stderr
    assert system.pids() == before


def shared_memory(pids: list[int]) -> set[Path]:
    """Files in shared memory that these processes use."""
    maps = "\n".join(Path(f"/proc/{pid}/maps").read_text() for pid in pids)
    return {Path(line.split()[5]) for line in maps.splitlines() if " /dev/shm/" in line}


@pytest.mark.system
@pytest.mark.slow
def test_nothing_is_left_when_up_is_killed_and_the_next_start_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "runs"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    killed = start(tmp_path)
    pids = killed.pids()
    assert len(pids) == 8
    shared = shared_memory(pids)
    abandoned = list(place.glob("livescale-*"))
    killed.process.send_signal(signal.SIGKILL)
    killed.process.wait(PATIENCE_SECONDS)
    assert killed.process.stdout is not None
    killed.process.stdout.close()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "processes outlive the one that started them"
        time.sleep(0.1)
    assert [path for path in shared if path.exists()] == []
    following = start(tmp_path)
    assert [path for path in abandoned if path.exists()] == []
    assert stop(following) == 0
    assert list(place.glob("livescale-*")) == []
