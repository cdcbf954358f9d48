"""The stack as it comes up: healthy in time, and parameters mapped or copied within a machine, never by TCP."""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.compose.stack import ONE_MACHINE, ComposeStack, docker, running
from tests.compose.streams import MODEL, serve

pytestmark = [pytest.mark.docker]

HEALTHY_SECONDS = 60.0  # on a machine that does nothing else
PATIENCE_SECONDS = 240.0
WORKERS, INSTANCES = 4, 3
REFUSED = "memory_of_others_not_readable"


@dataclass
class Case:
    """How parameters move: `path` is what workers say, `capability` what their containers may have."""

    path: str
    files: tuple[str, ...]
    env: dict[str, str]
    capability: str | None = None
    took: float = 0.0


CASES = [
    Case("mapped", ONE_MACHINE, {}),
    Case("cma", (*ONE_MACHINE, "docker-compose.cma.yml"), {"LIVESCALE_SHARE_MEMORY": "off"}, "SYS_PTRACE"),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.path)
def started(
    request: pytest.FixtureRequest, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Case, ComposeStack]]:
    """A stack that is up, and how long that took."""
    case: Case = request.param
    made = ComposeStack(
        tmp_path_factory.mktemp("stack"), case.files, flags=("--scale", f"worker={WORKERS}"), env=case.env
    )
    made.add_model(MODEL, checkpoint)
    start = time.monotonic()
    with running(made):
        made.wait_healthy(PATIENCE_SECONDS)
        case.took = time.monotonic() - start
        load = Path("/proc/loadavg").read_text().split()[0]  # what this machine had to do besides
        sys.stderr.write(f"{case.path}: healthy after {case.took:.1f} s at a load of {load}\n")
        yield case, made


def test_all_are_healthy_within_a_minute(started: tuple[Case, ComposeStack]) -> None:
    case, _ = started
    assert case.took <= HEALTHY_SECONDS


async def test_parameters_are_mapped_or_copied_by_the_kernel(started: tuple[Case, ComposeStack]) -> None:
    case, stack = started
    await serve(stack, min_instances=INSTANCES, max_instances=INSTANCES)
    status = stack.until(lambda: with_instances(stack), PATIENCE_SECONDS, "three instances")
    assert {path for worker in status["workers"] for path in worker["paths"].values()} == {case.path}
    workers = {one["id"] for one in status["processes"] if one["service"] == "worker"}
    assert workers == {f"worker-machine-{number}" for number in range(WORKERS)}


def with_instances(stack: ComposeStack) -> dict[str, Any] | None:
    """The status, once all instances serve."""
    status = stack.status()
    return status if len([one for one in status["instances"] if one["state"] == "serving"]) == INSTANCES else None


def test_a_refusal_to_read_memory_is_told_once_by_each_process(started: tuple[Case, ComposeStack]) -> None:
    case, stack = started
    told = [line for line in stack.logs("worker").splitlines() if REFUSED in line]
    assert all("--cap-add SYS_PTRACE" in line for line in told)
    # Whether an engine refuses depends on its version; with the capability none does.
    assert len(told) in ({0} if case.capability else {0, WORKERS})


def test_the_containers_are_confined(started: tuple[Case, ComposeStack]) -> None:
    case, stack = started
    for container in stack.containers():
        [told] = json.loads(docker("inspect", container.id))
        assert told["Config"]["User"] == "10001:10001"
        assert told["HostConfig"]["ReadonlyRootfs"]
        assert told["HostConfig"]["CapDrop"] == ["ALL"]
        assert set(told["HostConfig"]["CapAdd"] or ()) <= {case.capability}


def test_nobody_without_a_login_is_let_on_the_bus(started: tuple[Case, ComposeStack]) -> None:
    _, stack = started
    said = stack.compose("run", "--rm", "-T", "-e", "NATS_LOGIN=", "cli", "status", check=False)
    assert "registry-0" not in said
