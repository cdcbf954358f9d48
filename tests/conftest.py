"""Fixtures of all tests: nothing a test starts outlives it."""

import asyncio
import gc
import inspect
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.distribution import Distribution, give_way, group_of, turn

# On a busy machine any example may take long; what hangs is ended by deadlines of its own. The suite tries the same
# examples every time, `make fuzz` others.
FUZZ = "FUZZ" in os.environ

settings.register_profile(
    "suite", deadline=None, derandomize=not FUZZ, max_examples=100 if FUZZ else 30, print_blob=True
)
settings.load_profile("suite")

# Images of Python often forbid it to keep what it compiles: each of the hundreds of processes that tests start would
# compile everything again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Two processes of tests share two cores: threads of torch that wait for each other would be in their way.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("LIVESCALE_DEVICE", "cpu")  # where there are GPUs too: tests that need one name it

# Nothing of the user's own is asked or told: what tests start is on this machine, which no proxy leads to.
for name in [name for name in os.environ if name.startswith(("OTEL_", "NATS_")) and name != "NATS_SERVER_BIN"]:
    del os.environ[name]
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "localhost,127.0.0.1,::1"


class BeforeUcx(MetaPathFinder):
    """Has UCX watch memory by rewriting code, as it does on machines with RDMA or GPUs.

    Elsewhere it does so by the tables of libraries, and puts its own malloc there too. Libraries that free by the libc
    what it gave them then abort the process: torch and llguidance while they load, jsonschema-rs when it is used. No
    process of the system has one of these after UCX; in tests it would depend on their order.
    """

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Find nothing: those who find UCX come after this."""
        if fullname == "ucxx":
            os.environ["UCX_MEM_MMAP_HOOK_MODE"] = "bistro"


sys.meta_path.insert(0, BeforeUcx())


def pytest_make_parametrize_id(val: object) -> str | None:
    """A long text is named by its length: pytest puts the name into the environment, which has no room for it."""
    return f"{len(val)} of {val[:8]!r}" if isinstance(val, str | bytes) and len(val) > 200 else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without looking for garbage: no module becomes any, and to look through all of them takes long."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(5_000)  # with the usual 700 a tenth of the time goes into looking for garbage
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # xdist's own reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of whole systems in one process, or two. They share the fixtures of their module, and many systems
    at a time would wait for each other."""
    for item in items:
        if group := group_of(item):
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=turn)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Distribution | None:
    """Spread the tests as `make test` does it, and otherwise as xdist does."""
    return Distribution(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A process sets its priority by what it runs."""
    give_way(item)


@pytest.fixture(autouse=True)
def _no_leftovers(request: pytest.FixtureRequest) -> Iterator[None]:
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        request.getfixturevalue("_no_leftover_tasks")
    if not request.node.get_closest_marker("system"):
        yield
        return
    before = _children()
    yield
    left = _children() - before
    assert not left, f"processes left behind: {sorted(left)}"


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of loopback that refuses connections. It is held without listening: a port that was let go may be taken
    by any other test's connection or server meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
async def _no_leftover_tasks() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    # Tasks that were cancelled in the last moment get the turns they need to end.
    for _ in range(10):
        await asyncio.sleep(0)
    left = {task for task in asyncio.all_tasks() - before if task is not asyncio.current_task()}
    assert not left, f"tasks left behind: {sorted(task.get_name() for task in left)}"


def _children() -> set[int]:
    """Pids of this process's living children; a child that ended and was not waited for counts as well."""
    pids: set[int] = set()
    for thread in Path(f"/proc/{os.getpid()}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            pids.update(int(pid) for pid in (thread / "children").read_text().split())
    return pids
