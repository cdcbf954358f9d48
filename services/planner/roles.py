"""Orders to change an instance's role, from the operator to the worker that leads it.

The worker keeps its role and says it in its reports: a planner that is started anew has nothing to remember.
"""

import asyncio

import structlog

from livescale.services.planner.metrics import PlannerMetrics
from livescale.services.planner.view import ClusterView
from livescale.shared.bus.contract import Bus, BusError, Context, Refusal
from livescale.shared.messages.disaggregation import ChangeRole, RoleSet, SetRole
from livescale.shared.messages.membership import WorkerReport
from livescale.shared.subjects import CHANGE_ROLE

CALL_SECONDS = 1.0
ATTEMPTS = 3  # as the order or its answer may be lost; the same order again changes nothing
AGAIN_SECONDS = 0.1

log = structlog.get_logger()


class RoleOrders:
    """Answers SETs of roles, for the workers that `cluster` knows."""

    def __init__(self, bus: Bus, cluster: ClusterView, metrics: PlannerMetrics) -> None:
        self._bus = bus
        self._cluster = cluster
        self._metrics = metrics

    async def set(self, asked: SetRole, context: Context) -> RoleSet:
        """Have the worker take the role. Raises Refusal: 404 or 409 as SetRole says, 503 where it does not answer."""
        report = self._leader(asked.worker)
        instance = report.instance or ""
        order = ChangeRole(instance=instance, role=asked.role, epoch=report.epoch)
        await self._tell(asked.worker, order)
        log.info("role_set", worker=asked.worker, instance=instance, role=asked.role, before=report.role)
        if asked.role != report.role:
            self._metrics.role_set(asked.role)
        return RoleSet(worker=asked.worker, instance=instance, role=asked.role, before=report.role)

    def _leader(self, worker: str) -> WorkerReport:
        report = next((one for one in self._cluster.reports() if one.id == worker), None)
        if report is None:
            raise Refusal(404, f"no worker {worker!r} is alive; `livescale status` lists them")
        if report.instance is None or report.rank:
            raise Refusal(409, f"worker {worker!r} leads no instance, so it has no role: it is {report.state}")
        return report

    async def _tell(self, worker: str, order: ChangeRole) -> None:
        for left in reversed(range(ATTEMPTS)):
            try:
                await self._bus.call(CHANGE_ROLE, order, timeout=CALL_SECONDS, id=worker)
            except Refusal:
                raise
            except BusError as error:
                if not left:
                    message = f"worker {worker!r} does not answer: its role may have changed; give the order again"
                    raise Refusal(503, message, retry_after_ms=1000) from error
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return
