"""What the registry shows to Prometheus: who is there. With zeros: they are what somebody wants to be woken for."""

from collections import Counter
from typing import get_args

from livescale.services.registry.holdings import Holdings
from livescale.services.registry.leases import Leases
from livescale.shared.messages.membership import LeaseState, ServiceName, WorkerState
from livescale.shared.process.telemetry import Telemetry


class RegistryMetrics:
    def __init__(self, telemetry: Telemetry, leases: Leases, holds: Holdings) -> None:
        self._leases = leases
        self._holds = holds
        self._moves = telemetry.counter(
            "livescale_registry_lease_changes_total",
            "Changes of leases by new state",
            ["state"],
            [("alive",), ("suspect",), ("dead",)],
        )
        telemetry.watch_gauge(
            "livescale_registry_members", "Processes that live, by service", ["service"], self._count_members
        )
        telemetry.watch_gauge(
            "livescale_registry_workers", "Workers that live, by state", ["state"], self._count_workers
        )

    def lease_moved(self, state: LeaseState) -> None:
        self._moves.labels(state).inc()

    def _count_members(self) -> dict[tuple[str, ...], float]:
        living = Counter(one.service for one in self._leases.members() if one.lease != "dead")
        return {(service,): float(living[service]) for service in get_args(ServiceName)}

    def _count_workers(self) -> dict[tuple[str, ...], float]:
        states = Counter(report.state for report in self._holds.workers())
        return {(state,): float(states[state]) for state in get_args(WorkerState)}
