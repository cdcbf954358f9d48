"""Two machines on one engine: parameters go between them by TCP, over a link that is shaped, cut and healed."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.compose.stack import ComposeStack, docker, running
from tests.compose.streams import MODEL, loaded, register

pytestmark = [pytest.mark.docker]

FILES = ("docker-compose.yml", "docker-compose.two-machines.yml")
HEALTHY_SECONDS = 240.0
RATE = "8mbit"  # a model takes seconds
CUT_SECONDS = 5.0


@pytest.fixture(scope="module")
def pair(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeStack]:
    """Two machines with a worker each, and the link between them shaped."""
    flags = ("--scale", "worker=1", "--scale", "far-worker=1")
    made = ComposeStack(tmp_path_factory.mktemp("pair"), files=FILES, flags=flags)
    made.add_model(MODEL, checkpoint)
    with running(made):
        made.wait_healthy(HEALTHY_SECONDS)
        for machine in ("machine", "far-machine"):
            tbf = ("root", "tbf", "rate", RATE, "burst", "256kb", "latency", "100ms")
            on_card(made, machine, "tc", "qdisc", "add", "dev", card(made, machine), *tbf)
        yield made


def on_card(stack: ComposeStack, machine: str, *command: str) -> str:
    """Run a command of this machine's system in the network namespace of a machine of the stack. Needs root."""
    [told] = json.loads(docker("inspect", stack.containers(machine)[0].id))
    inside = ("nsenter", "--target", str(told["State"]["Pid"]), "--net", *command)
    return subprocess.run(inside, check=True, capture_output=True, text=True, timeout=30).stdout


def card(stack: ComposeStack, machine: str) -> str:
    """The name of the network device on the link, inside the machine."""
    [told] = json.loads(docker("inspect", stack.containers(machine)[0].id))
    address = told["NetworkSettings"]["Networks"][f"{stack.project}_link"]["IPAddress"]
    devices = json.loads(on_card(stack, machine, "ip", "-j", "-4", "addr"))
    return next(str(one["ifname"]) for one in devices if address in {each["local"] for each in one["addr_info"]})


def serving(stack: ComposeStack, machines: set[str]) -> dict[str, Any] | None:
    """The status, once workers on exactly these machines serve."""
    status = stack.status()
    found = {one["host"] for one in status["workers"] if one["state"] == "serving"}
    return status if found == machines else None


def serving_when_asked(stack: ComposeStack, machines: set[str]) -> dict[str, Any] | None:
    """As `serving`. Where they do not, two instances are asked for; that is refused while a worker is not back."""
    status = serving(stack, machines)
    if status is None:
        with suppress(AssertionError):
            stack.cli("scale", MODEL, "--instances", "2")
    return status


def by_tcp(stack: ComposeStack) -> bool:
    """Whether a worker has begun to receive over the link."""
    chosen = [
        line for name in ("worker", "far-worker") for line in stack.logs(name).splitlines() if "path_chosen" in line
    ]
    return any("path=tcp" in line for line in chosen)


async def test_an_instance_is_added_across_the_link_though_it_is_cut_meanwhile(
    pair: ComposeStack, checkpoint: Path
) -> None:
    # One host has the model, so one of two instances gets it from the other machine.
    await register(pair, min_instances=0, max_instances=2, downscale_delay_s=3600)
    async with loaded(pair, checkpoint) as streams:
        scaling = asyncio.create_task(asyncio.to_thread(pair.cli, "scale", MODEL, "--instances", "2"))
        await asyncio.to_thread(pair.until, lambda: by_tcp(pair) or None, 60.0, "a transfer over the link")
        device = card(pair, "machine")
        on_card(pair, "machine", "ip", "link", "set", "dev", device, "down")
        await asyncio.sleep(CUT_SECONDS)
        on_card(pair, "machine", "ip", "link", "set", "dev", device, "up")
        await scaling
        # A worker that was cut off for longer than its lease counts as dead, and then its scale has failed: it is asked
        # for again, as an operator would.
        both = {"machine", "far-machine"}
        status = await asyncio.to_thread(
            pair.until, lambda: serving_when_asked(pair, both), 120.0, "an instance on each machine"
        )
    sys.stderr.write(f"{streams.summary}\n")
    assert streams.lost == []
    assert streams.wrong == []
    # Within a machine nothing went by TCP.
    machine_of = {one["id"]: one["host"] for one in status["processes"]}
    found = [(one["host"], machine_of[by], path) for one in status["workers"] for by, path in one["paths"].items()]
    assert {path for here, there, path in found if here != there} == {"tcp"}
    assert "tcp" not in {path for here, there, path in found if here == there}


async def test_no_stream_is_lost_when_one_of_two_machines_dies(pair: ComposeStack, checkpoint: Path) -> None:
    async with loaded(pair, checkpoint) as streams:
        await asyncio.sleep(3.0)
        start = time.monotonic()
        await asyncio.to_thread(pair.kill, pair.containers("far-machine")[0])
        await asyncio.sleep(2.0)
        await asyncio.to_thread(pair.up)
        await asyncio.to_thread(pair.wait_healthy, 60.0)
        sys.stderr.write(f"healthy after {time.monotonic() - start:.1f} s\n")
    assert streams.wrong == []
    assert streams.lost == []
