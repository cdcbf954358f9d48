"""Has the planner give instances the roles that the router chose."""

import structlog

from livescale.services.router.effects import AssignRole
from livescale.shared.bus.contract import Bus, BusError
from livescale.shared.messages.disaggregation import SetRole
from livescale.shared.subjects import ROLE

CALL_SECONDS = 5.0  # the planner tells a worker several times

log = structlog.get_logger()


async def assign(bus: Bus, order: AssignRole) -> None:
    """Ask for one role. Where that fails it is ordered again, as the worker goes on to report the other one."""
    try:
        asked = SetRole(worker=order.worker, role=order.role, reason=order.reason)
        await bus.call(ROLE, asked, timeout=CALL_SECONDS)
    except BusError as error:
        log.warning("role_not_assigned", worker=order.worker, role=order.role, error=str(error))
    else:
        log.info("role_assigned", worker=order.worker, role=order.role, reason=order.reason)
