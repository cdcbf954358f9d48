"""Orders to change an instance's role, from the operator or the router to the worker that leads it.

The worker keeps its role and says it in its reports: a planner that is started anew has nothing to remember.
"""

import asyncio
from collections.abc import Callable

import structlog
from msgspec.structs import replace

from livescale.services.planner.metrics import PlannerMetrics
from livescale.services.planner.role_switch import RoleSwitch
from livescale.services.planner.view import ClusterView
from livescale.shared.bus.contract import BusError, Context, Refusal
from livescale.shared.messages.disaggregation import ChangeRole
from livescale.shared.messages.membership import WorkerReport
from livescale.shared.messages.scaling import Decision, RoleMove, RoleSet, SetRole
from livescale.shared.process.run import World
from livescale.shared.subjects import CHANGE_ROLE

CALL_SECONDS = 1.0
ATTEMPTS = 3  # as the order or its answer may be lost; the same order again changes nothing
AGAIN_SECONDS = 0.1

log = structlog.get_logger()


class RoleOrders:
    """Answers SETs of roles, for the workers that `cluster` knows. `keep` takes the record of what was set by hand."""

    def __init__(
        self, world: World, cluster: ClusterView, metrics: PlannerMetrics, keep: Callable[[RoleSwitch], None]
    ) -> None:
        self._bus, self._clock, self._ids = world.bus, world.clock, world.ids
        self._cluster = cluster
        self._metrics = metrics
        self._keep = keep

    async def set(self, asked: SetRole, context: Context) -> RoleSet:
        """Have the worker take the role. Raises Refusal: 404 or 409 as SetRole says, 503 where it does not answer."""
        report = self._leader(asked.worker)
        instance = report.instance or ""
        order = ChangeRole(instance=instance, role=asked.role, epoch=report.epoch)
        await self._tell(asked.worker, order)
        log.info(
            "role_set", worker=asked.worker, instance=instance, role=asked.role, before=report.role, reason=asked.reason
        )
        if asked.role != report.role and asked.reason:
            self._metrics.role_set(asked.role)  # the monitor tells why, once for all that the router orders
        elif asked.role != report.role:
            self._keep(self._by_hand(asked, report))
        return RoleSet(worker=asked.worker, instance=instance, role=asked.role, before=report.role)

    def _by_hand(self, asked: SetRole, report: WorkerReport) -> RoleSwitch:
        """The record of an order that was carried out, for `livescale why`."""
        now, model = self._clock.wall(), report.model or ""
        count = sum(one.model == model and one.instance is not None and not one.rank for one in self._cluster.reports())
        move = RoleMove(
            worker=report.id,
            instance=report.instance or "",
            epoch=report.epoch,
            role=asked.role,
            before=report.role,
            reason=f"{report.role or 'no role'} -> {asked.role}, by hand",
        )
        decision = Decision(
            id=self._ids.new("decision"),
            model=model,
            at=now,
            action="switch",
            current=count,
            target=count,
            rule="operator",
            reason=f"an operator gave {report.id} the role {asked.role}",
            by="operator",
        )
        switch = RoleSwitch(self._ids.new("scale"), decision, [move], now)
        switch.start(now)
        switch.on_report(replace(report, role=asked.role), now)  # it has taken the order
        return switch

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
