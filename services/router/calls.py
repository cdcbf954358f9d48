"""The calls that the policy orders: a worker hands a request over, the planner gives an instance a role."""

import structlog

from livescale.services.router.effects import AssignRole, MoveRequest
from livescale.shared.bus.contract import Bus, BusError, Context, Refusal, TooLarge
from livescale.shared.messages.disaggregation import HandOver
from livescale.shared.messages.scaling import SetRole
from livescale.shared.subjects import HAND_OVER, ROLE

MOVE_SECONDS = 30.0  # all KV of a long request moves, while others do
ROLE_SECONDS = 5.0  # the planner tells a worker several times

log = structlog.get_logger()


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


async def assign(bus: Bus, order: AssignRole) -> None:
    """Ask for one role. Where that fails it is ordered again, as the worker goes on to report the other one."""
    try:
        asked = SetRole(worker=order.worker, role=order.role, reason=order.reason)
        await bus.call(ROLE, asked, timeout=ROLE_SECONDS)
    except BusError as error:
        log.warning("role_not_assigned", worker=order.worker, role=order.role, error=str(error))
    else:
        log.info("role_assigned", worker=order.worker, role=order.role, reason=order.reason)


def code_of(error: BusError) -> int:
    """The HTTP status of a failed admission. A worker that could not be reached may be reached later (503); a request
    that is too large for a message never fits (413)."""
    if isinstance(error, Refusal):
        return error.code
    return 413 if isinstance(error, TooLarge) else 503


def told(error: BusError) -> str:
    """The reason of a failed admission in a client's words, without subjects of the bus."""
    return (
        error.message if isinstance(error, Refusal) else "the request is too large to be sent to a worker; shorten it"
    )
