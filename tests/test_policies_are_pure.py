"""Decisions are pure: a policy module imports no I/O, no clock, no chance, and nothing of its own that does."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
FORBIDDEN = {
    *("asyncio", "nats", "ucxx", "torch", "time", "random", "os", "uuid", "threading", "datetime", "secrets"),
    *("socket", "selectors", "subprocess", "multiprocessing", "concurrent", "signal", "structlog", "logging"),
    *("numpy", "uvloop", "starlette", "uvicorn", "prometheus_client", "opentelemetry"),
}
POLICIES = (
    "services/*/effects.py",
    "services/*/policy.py",
    "services/gateway/answers.py",
    "services/gateway/output.py",
    "services/gateway/progress.py",
    "services/gateway/rate_limits.py",
    "services/gateway/shapes.py",
    "services/host/cache.py",
    "services/monitor/arbitration.py",
    "services/monitor/needs.py",
    "services/monitor/role_policy.py",
    "services/monitor/role_signals.py",
    "services/monitor/signals.py",
    "services/monitor/spares.py",
    "services/monitor/verdict.py",
    "services/monitor/weighing.py",
    "services/planner/delivery.py",
    "services/planner/fleet.py",
    "services/planner/live.py",
    "services/planner/orders.py",
    "services/planner/pipelines.py",
    "services/planner/plans/*.py",
    "services/planner/role_planner.py",
    "services/planner/role_switch.py",
    "services/planner/running_scale.py",
    "services/planner/scale_in.py",
    "services/planner/scale_out.py",
    "services/planner/shard_planner.py",
    "services/planner/store.py",
    "services/planner/supply.py",
    "services/planner/targets.py",
    "services/registry/fetches.py",
    "services/registry/holdings.py",
    "services/registry/host_caches.py",
    "services/registry/incidents.py",
    "services/registry/join_checks.py",
    "services/registry/leases.py",
    "services/registry/model.py",
    "services/registry/placement.py",
    "services/registry/pool.py",
    "services/router/admission.py",
    "services/router/fleet.py",
    "services/router/forecast.py",
    "services/router/instances.py",
    "services/router/modes.py",
    "services/router/moves.py",
    "services/router/requests.py",
    "services/router/routing.py",
    "services/worker/disaggregation/incoming.py",
    "services/worker/disaggregation/laying.py",
    "services/worker/disaggregation/outgoing.py",
    "services/worker/disaggregation/pieces.py",
    "services/worker/engine/modelled_kv.py",
    "services/worker/engine/modelled_steps.py",
    "services/worker/kv/*.py",
    "services/worker/instance/lifecycle.py",
    "services/worker/live/optimum.py",
    "services/worker/live/policy.py",
    "services/worker/live/queue.py",
    "services/worker/live/simulation.py",
    "services/worker/live/windows.py",
    "services/worker/pipeline/filling.py",
    "services/worker/pipeline/wire.py",
    "services/worker/scheduling/*.py",
    "services/worker/engine/send_share.py",
    "services/worker/tensor_parallel/wire.py",
    "shared/bus/codec.py",
    "shared/links/fair_rates.py",
    "shared/links/flows.py",
    "shared/links/link_path.py",
    "shared/messages/requests.py",
    "shared/model/latency.py",
    "shared/model/sharding.py",
    "shared/policy/backoff.py",
    "shared/policy/invariants.py",
    "shared/simulation/fair_flows.py",
    "shared/topology/paths.py",
    "shared/topology/topology.py",
    "shared/transfer/chunks.py",
    "shared/units.py",
)
DECIDING = {"registry", "router", "planner", "monitor", "worker", "gateway"}


def policy_modules() -> list[Path]:
    return sorted({path for pattern in POLICIES for path in ROOT.glob(pattern)})


@cache  # most policies reach the same files
def imported(path: Path) -> frozenset[str]:
    """Full names of the modules that a file imports, wherever in it."""
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(names)


def file_of(module: str) -> Path | None:
    """The project's own file of this module."""
    package, *parts = module.split(".")
    if package != "livescale" or not parts:
        return None
    path = ROOT / Path(*parts).with_suffix(".py")
    return path if path.exists() else None


def reached(path: Path) -> set[Path]:
    """The file, and whatever of the project it imports, directly or not."""
    seen: set[Path] = set()
    waiting = [path]
    while waiting:
        current = waiting.pop()
        if current not in seen:
            seen.add(current)
            waiting += [file for module in imported(current) if (file := file_of(module)) is not None]
    return seen


def test_imports_are_followed() -> None:
    assert ROOT / "shared" / "messages" / "requests.py" in reached(ROOT / "services" / "router" / "policy.py")


def test_no_policy_reaches_io_a_clock_or_chance() -> None:
    for path in policy_modules():
        for file in sorted(reached(path)):
            roots = {module.split(".")[0] for module in imported(file)}
            assert not roots & FORBIDDEN, f"{path.relative_to(ROOT)} reaches {file.relative_to(ROOT)}"


def test_no_policy_awaits_or_opens_files() -> None:
    for path in policy_modules():
        for node in ast.walk(ast.parse(path.read_text())):
            place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            assert not isinstance(node, ast.AsyncFunctionDef | ast.Await), f"{place} awaits"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("open", "print", "input"), f"{place} calls {node.func.id}"


def test_every_pattern_names_a_policy() -> None:
    assert [pattern for pattern in POLICIES if not list(ROOT.glob(pattern))] == []


def test_every_service_that_decides_has_its_policy_here() -> None:
    covered = {path.relative_to(ROOT).parts[1] for path in policy_modules() if path.is_relative_to(ROOT / "services")}
    assert covered >= DECIDING, f"no policy module found for {sorted(DECIDING - covered)}"
