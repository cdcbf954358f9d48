"""Prometheus by its profile: it reads every process of the stack, also those that come later, and takes our rules."""

import json
import os
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from livescale.services.supervisor.ports import free_port
from tests.compose.conftest import no_image
from tests.compose.stack import ComposeStack, docker, running
from tests.compose.streams import MODEL, loaded, serve
from tests.observability import alerts, queries

pytestmark = [pytest.mark.docker]

IMAGE = os.environ.get("PROMETHEUS_IMAGE", "livescale-prometheus")
HEALTHY_SECONDS = 240.0
READ_SECONDS = 120.0
FEWER, MORE = 2, 3  # workers
REQUESTS = 'sum(livescale_gateway_requests_total{endpoint="/v1/completions",status="200"})'
TOKENS = "sum(livescale_gateway_generation_tokens_total)"


@pytest.fixture(scope="module")
def watched(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeStack]:
    """A stack with Prometheus beside it."""
    if reason := no_image(IMAGE):
        pytest.skip(reason)
    env = {"COMPOSE_PROFILES": "monitoring", "PROMETHEUS_IMAGE": IMAGE, "PROMETHEUS_PORT": str(free_port())}
    made = ComposeStack(tmp_path_factory.mktemp("watched"), flags=("--scale", f"worker={FEWER}"), env=env)
    made.add_model(MODEL, checkpoint)
    with running(made):
        made.wait_healthy(HEALTHY_SECONDS)
        yield made


def asked(stack: ComposeStack, path: str, **parameters: str) -> Any:
    """What Prometheus answers; None while it does not."""
    url = f"http://127.0.0.1:{stack.env['PROMETHEUS_PORT']}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]
    except OSError:
        return None


def value(stack: ComposeStack, expr: str) -> float | None:
    found = asked(stack, "query", query=expr)
    return float(found["result"][0]["value"][1]) if found and found["result"] else None


def read_well(stack: ComposeStack) -> set[str]:
    """The processes that Prometheus reads."""
    targets = asked(stack, "targets", state="active") or {"activeTargets": []}
    return {one["labels"]["instance"] for one in targets["activeTargets"] if one["health"] == "up"}


def processes(stack: ComposeStack) -> set[str]:
    return {one["id"] for one in stack.status()["processes"] if one["lease"] == "alive"}


def reads_all(stack: ComposeStack, workers: int) -> set[str] | None:
    """Those that it reads, once they are all that there are, with so many workers."""
    read = read_well(stack)
    return read if sum(one.startswith("worker-") for one in read) == workers and read == processes(stack) else None


def test_it_reads_every_process_and_a_worker_that_is_added_later(watched: ComposeStack) -> None:
    first = watched.until(lambda: reads_all(watched, FEWER), READ_SECONDS, "all processes to be read")
    assert len(first) == 8 + FEWER
    watched.compose("up", "-d", "--scale", f"worker={MORE}")
    watched.flags = ("--scale", f"worker={MORE}")
    more = watched.until(lambda: reads_all(watched, MORE), READ_SECONDS, "the new worker to be read")
    assert len(more - first) == 1


def test_the_rules_are_taken_and_none_of_them_fails(watched: ComposeStack) -> None:
    def evaluated() -> list[dict[str, Any]] | None:
        groups = (asked(watched, "rules") or {"groups": []})["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        return rules if rules and all(rule["health"] == "ok" for rule in rules) else None

    rules = watched.until(evaluated, READ_SECONDS, "all rules to be evaluated")
    assert {rule["name"] for rule in rules if rule["type"] == "alerting"} == {one["alert"] for one in alerts()}


async def test_what_two_gateways_count_is_what_their_clients_were_told(watched: ComposeStack, checkpoint: Path) -> None:
    await serve(watched, min_instances=1, max_instances=2)
    before = {expr: settled(watched, expr) for expr in (REQUESTS, TOKENS)}
    async with loaded(watched, checkpoint) as streams:
        watched.cli("scale", MODEL, "--instances", "2")
    assert (streams.lost, streams.wrong) == ([], [])
    told = {REQUESTS: len(streams.records), TOKENS: sum(len(one.token_ids) for one in streams.records)}
    wanted = {expr: before[expr] + count for expr, count in told.items()}
    watched.until(lambda: {expr: value(watched, expr) for expr in told} == wanted or None, READ_SECONDS, f"{wanted}")
    empty = [one.panel for one in queries("5m") if asked(watched, "query", query=one.expr) is None]
    assert empty == []


def settled(stack: ComposeStack, expr: str) -> float:
    """The value of a counter once Prometheus has read all that was counted."""
    seen: list[float] = []

    def same() -> bool:
        found = value(stack, expr)
        seen.extend([] if found is None else [found])
        return len(seen) > 20 and len(set(seen[-20:])) == 1

    stack.until(same, READ_SECONDS, f"{expr} to stand still")
    return seen[-1]


def test_it_is_confined_as_the_others_are(watched: ComposeStack) -> None:
    [container] = watched.containers("prometheus")
    [told] = json.loads(docker("inspect", container.id))
    assert told["HostConfig"]["ReadonlyRootfs"]
    assert told["HostConfig"]["CapDrop"] == ["ALL"]
    assert docker("exec", container.id, "id", "-u").strip() != "0"
