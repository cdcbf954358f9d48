"""Prefill and decode at two workers under load: tokens as of one worker alone, whatever roles and workers do."""

import asyncio
import json
import re
import urllib.request
from pathlib import Path

import pytest

from tests.system.conftest import System, started
from tests.system.structured import COUNT, structured_answers
from tests.system.under_load import SystemUnderLoad, make_streams

TOKENS = 80
TAKEN = re.compile(r'^livescale_kv_transfers_total\{.*process="(\S+?)".*\} (\S+)', re.MULTILINE)


def taken(system: System) -> dict[str, float]:
    """How many requests were taken over from each worker that prefilled them."""
    with urllib.request.urlopen(system.url + "/metrics/all", timeout=120) as answer:
        return {worker: float(count) for worker, count in TAKEN.findall(answer.read().decode())}


def give_roles(system: System, **roles: str) -> None:
    """Give each worker its role, without the time that a command takes to start."""
    for worker, role in roles.items():
        body = json.dumps({"worker": worker.replace("_", "-"), "role": role}).encode()
        request = urllib.request.Request(system.url + "/admin/v1/role", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            assert json.load(answer)["role"] == role


@pytest.mark.system
async def test_requests_are_decoded_elsewhere_though_roles_change_and_the_decode_worker_dies(tmp_path: Path) -> None:
    # With a share of its own the system gives nobody another role, as the load may ask for.
    apart = ("--disaggregation", "on", "--prefill-share", "0.5")
    with started(tmp_path, "--min-instances", "2", "--max-instances", "2", *apart) as system:
        streams = await asyncio.to_thread(make_streams, "m", "float32", 10, TOKENS)
        loaded = SystemUnderLoad(system, streams)
        await asyncio.to_thread(loaded.rest, 2, 0)
        instances = {one["id"]: one["instance"] for one in loaded.status["workers"]}
        assert {one["role"] for one in loaded.status["workers"]} == {"prefill", "decode"}
        await asyncio.to_thread(give_roles, system, worker_1="decode")
        told = await asyncio.to_thread(system.command, "role", "worker-0", "prefill")
        assert told.stdout.startswith(f"{instances['worker-0']}: ")

        loaded.check("apart", await loaded.load())
        assert (await asyncio.to_thread(taken, system))["worker-0"] == len(streams.asks)

        before = (await asyncio.to_thread(taken, system))["worker-0"]
        by_schema = await structured_answers(system.url)
        assert (await asyncio.to_thread(taken, system))["worker-0"] == before + COUNT

        loading = asyncio.create_task(loaded.load())
        await asyncio.sleep(0.5)
        await asyncio.to_thread(give_roles, system, worker_0="decode", worker_1="prefill")
        loaded.check("roles changed", await loading)
        loaded.check("apart the other way", await loaded.load())
        assert (await asyncio.to_thread(taken, system))["worker-1"] >= len(streams.asks)
        assert {one["id"]: one["instance"] for one in system.status()["workers"]} == instances

        await loaded.under_load("the decode worker killed", loaded.pids()["worker-0"])
        assert await structured_answers(system.url) == by_schema
