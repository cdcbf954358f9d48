"""`livescale bench control`: what it says of latencies and CPU seconds, and the stream that these are compared with."""

import os
import time

import pytest

from livescale.load.bench.control.rows import (
    ENGINE,
    FEW,
    GATEWAY,
    HOPS,
    MANY,
    Cost,
    Latencies,
    PathLatencies,
    cost_of,
    cost_rows,
    cpu_seconds,
    rows,
)
from livescale.load.bench.record import Record


def told(idle_ms: float, loaded_ms: float, count: int = 200, hops_ms: float = 2.0) -> dict[str, Record]:
    """Return rows in which the gateway takes so much more than the engine's 80 ms for eight tokens, and bare hops so
    much more than their worker's 8 ms."""
    idle = {GATEWAY: 0.080 + idle_ms / 1e3, ENGINE: 0.080, HOPS: 0.008 + hops_ms / 1e3}
    loaded = {GATEWAY: 0.200 + loaded_ms / 1e3, ENGINE: 0.200}
    paths = PathLatencies(ways(idle, count), ways(loaded, count), worked=0.008, rate=10.0)
    return {record.case: record for record in rows(paths, [0.01])}


def ways(seconds: dict[str, float], count: int) -> dict[str, Latencies]:
    return {name: Latencies([each] * count) for name, each in seconds.items()}


def test_idle_three_milliseconds_and_a_tenth_of_a_step_may_be_added() -> None:
    kept = told(3.9, 9.9)
    assert kept["a step of the engine, idle, p50"].value == pytest.approx(10.0)
    assert kept["added latency, idle, p50"].against == pytest.approx(4.0)
    assert kept["added latency, idle, p50"].ok is True
    assert told(4.1, 0.0)["added latency, idle, p50"].ok is False


def test_under_load_ten_milliseconds_may_be_added_and_tails_have_no_bar() -> None:
    assert told(0.0, 9.9)["added latency, at 70 %, p50"].ok is True
    missed = told(0.0, 10.1)
    assert missed["added latency, at 70 %, p50"].ok is False
    assert missed["added latency, at 70 %, p99"].ok is None
    assert not any("p99" in case for case in told(0.0, 0.0, count=199))


def test_three_times_what_bare_hops_add_may_be_added() -> None:
    kept = told(5.9, 0.0)
    assert kept["added latency of bare hops, idle, p50"].value == pytest.approx(2.0)
    assert kept["added latency, idle, p50, to bare hops"].ratio == pytest.approx(2.95)
    assert kept["added latency, idle, p50, to bare hops"].ok is True
    assert told(6.1, 0.0)["added latency, idle, p50, to bare hops"].ok is False


def test_cpu_seconds_are_told_by_request_and_token_beside_a_bare_stream() -> None:
    costs = {"gateway": Cost(1e-3, 50e-6, 0.01), "router": Cost(0.5e-3, 0.0, 0.01), "bus": Cost(0.5e-3, 10e-6, 0.01)}
    found = {record.case: record for record in cost_rows(costs, Cost(0.4e-3, 30e-6, 0.01))}
    request, token = (found[f"CPU of a {what}, gateway + router + bus"] for what in ("request", "token"))
    assert (request.value, request.against, request.ok) == (pytest.approx(2000), pytest.approx(400), None)
    assert (token.value, token.ratio) == (pytest.approx(60), pytest.approx(2.0))
    assert found["CPU of a request, router"].value == pytest.approx(500)


def test_a_request_is_told_from_its_tokens() -> None:
    cost = cost_of(few=1.0, many=1.0 + (MANY - FEW) * 0.25, gap=0.1)
    assert (cost.request, cost.token) == (1.0, 0.25)


def test_the_cpu_clock_of_a_process_is_that_of_all_its_threads() -> None:
    before, ours = cpu_seconds(os.getpid()), time.process_time()
    while time.process_time() < ours + 0.05:
        pass
    told, spent = cpu_seconds(os.getpid()) - before, time.process_time() - ours
    assert told == pytest.approx(spent, abs=0.02)
