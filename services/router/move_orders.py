"""Has workers hand requests over to others, as `moves` chose."""

import structlog

from livescale.services.router.effects import MoveRequest
from livescale.services.router.failures import code_of
from livescale.shared.bus.contract import Bus, BusError, Context
from livescale.shared.messages.disaggregation import HandOver
from livescale.shared.subjects import HAND_OVER

MOVE_SECONDS = 30.0  # all KV of a long request moves, while others do

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
