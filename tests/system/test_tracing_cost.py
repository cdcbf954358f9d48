"""What tracing costs: next to nothing where it is off, and how much where every request is traced."""

import asyncio
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import pytest

from livescale.load.bench.control.rows import Cost, measure_costs
from livescale.load.client import LoadClient, open_client
from livescale.load.records import Ask, find_fault
from livescale.services.gateway.bodies import CompletionRequest
from livescale.services.gateway.envelope import PromptTokensDetails, Usage
from livescale.services.gateway.spans import Tracing
from livescale.services.router.effects import AdmitTo
from livescale.services.router.metrics import RouterSpans
from livescale.services.worker.instance.spans import RequestTimes, WorkerSpans
from livescale.shared.messages.requests import Submit
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.runtime.clock import SystemClock
from tests.collector import collecting
from tests.system.conftest import System, started

pytestmark = [pytest.mark.system, pytest.mark.slow]

ROUNDS, REQUESTS, LANES = 5, 100, 8
CALLS = 5_000
SMALL_SHARE = 0.02  # of a request's CPU, which is not to be told from none
SERVICES = ("gateway", "router", "worker")


@dataclass
class Measured:
    """A system, and the CPU seconds of a request in its gateway, router and worker, one for each round."""

    system: System
    pids: dict[str, int] = field(default_factory=dict)
    rounds: list[dict[str, Cost]] = field(default_factory=list)

    def request(self, service: str) -> float:
        """Of a request with one token."""
        return median(one[service].request for one in self.rounds)

    def token(self, service: str) -> float:
        return median(one[service].token for one in self.rounds)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Measured]]:
    """A system that traces nothing, and one whose every request is traced."""
    with (
        started(tmp_path_factory.mktemp("off"), "--workers", "1") as off,
        pytest.MonkeyPatch.context() as patch,
        collecting(patch.setenv),
        started(tmp_path_factory.mktemp("on"), "--workers", "1") as on,
    ):
        yield {"off": Measured(off), "on": Measured(on)}


async def fetch(client: LoadClient, number: int, tokens: int) -> None:
    record = await client.fetch(Ask(number, 0.0, [number % 1_000] * 16, tokens), client.now())
    assert find_fault(record) is None


async def measure(one: Measured) -> None:
    """A round: the same requests as in every other one."""
    async with open_client(one.system.url, "m", 60.0) as client:
        await fetch(client, 0, 1)
        one.rounds.append(await measure_costs(one.pids, partial(fetch, client), REQUESTS, LANES))


async def test_a_request_costs_the_same_where_tracing_is_off(pair: dict[str, Measured]) -> None:
    for one in pair.values():
        processes = (await asyncio.to_thread(one.system.status))["processes"]
        one.pids = {each["service"]: each["pid"] for each in processes if each["service"] in SERVICES}
    for _ in range(ROUNDS):  # in turns, as the machine is not the same at all times
        for one in pair.values():
            await measure(one)
    idle = calls_of_a_request()
    whole = {name: sum(one.request(service) for service in SERVICES) for name, one in pair.items()}
    for name, one in pair.items():
        told = {each: f"{one.request(each) * 1e6:.0f} + {one.token(each) * 1e6:.0f}/token" for each in SERVICES}
        sys.stderr.write(f"tracing {name}: us of CPU of a request {told}\n")
    share = idle / whole["off"]
    sys.stderr.write(
        f"calls that do nothing: {idle * 1e6:.2f} us of a request's {whole['off'] * 1e6:.0f}: {share:.2%}\n"
    )
    assert share < SMALL_SHARE


def test_a_process_that_traces_nothing_has_no_thread_for_it(pair: dict[str, Measured]) -> None:
    def threads(one: Measured) -> dict[str, int]:
        processes = [each for each in one.system.status()["processes"] if each["service"] in SERVICES]
        return {each["id"]: len(list(Path(f"/proc/{each['pid']}/task").iterdir())) for each in processes}

    off, on = threads(pair["off"]), threads(pair["on"])
    assert all(on[id] > off[id] for id in off), (off, on)


def calls_of_a_request() -> float:
    """CPU seconds of what gateway, router and worker do for the trace of a request where nothing is traced."""
    clock = SystemClock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_SDK_DISABLED", "true")
        telemetry = Telemetry("gateway", "gateway-0")
        tracing, router, worker = Tracing(telemetry, clock), RouterSpans(None), WorkerSpans.of(telemetry, clock)
    assert telemetry.spans is None
    body, usage = CompletionRequest(model="m", prompt=[1]), Usage(1, 1, 2, PromptTokensDetails(0))
    request = Submit(request_id="r", model="m", gateway="g", prompt=[1], deadline=4e9)
    admission = AdmitTo("w", 1, request, 0, "it is the only one", 0.0)
    times = RequestTimes(request, 1.0, 1.0, started=1.0, first=2.0, last=2.0, tokens=1)

    def once() -> None:
        trace = tracing.begin({}, body, "cmpl-1")
        router.answered(admission, 1.0, 1.0)
        worker.ended(times, 2.0, "length")
        trace.end(usage, (), None)

    def batch() -> float:
        began = time.process_time()
        for _ in range(CALLS):
            once()
        return (time.process_time() - began) / CALLS

    return min(batch() for _ in range(5))
