"""Has the planner give instances the roles that the router chose, and workers hand requests over to others."""

import structlog

from livescale.services.router.effects import AssignRole, MoveRequest
from livescale.services.router.failures import code_of
from livescale.shared.bus.contract import Bus, BusError, Context
from livescale.shared.messages.disaggregation import HandOver, SetRole
from livescale.shared.subjects import HAND_OVER, ROLE

CALL_SECONDS = 5.0  # the planner tells a worker several times
MOVE_SECONDS = 30.0  # all KV of a long request moves, while others do

log = structlog.get_logger()


async def assign(bus: Bus, order: AssignRole) -> None:
    """Ask for one role. Where that fails it is ordered again, as the worker goes on to report the other one."""
    try:
        await bus.call(ROLE, SetRole(worker=order.worker, role=order.role), timeout=CALL_SECONDS)
    except BusError as error:
        log.warning("role_not_assigned", worker=order.worker, role=order.role, error=str(error))
    else:
        log.info("role_assigned", worker=order.worker, role=order.role, reason=order.reason)


async def hand_over(bus: Bus, order: MoveRequest) -> int | None:
    """Have one request move. Returns why it does not, as a code of HTTP; None once it has moved."""
    command = HandOver(request_id=order.request_id, decode=order.decode)
    try:
        await bus.call(HAND_OVER, command, timeout=MOVE_SECONDS, context=Context(epoch=order.epoch), id=order.worker)
    except BusError as error:
        log.info("request_not_moved", request=order.request_id, worker=order.worker, to=order.decode, error=str(error))
        return code_of(error)
    log.info("request_moved", request=order.request_id, worker=order.worker, to=order.decode, reason=order.reason)
    return None
