"""Commands on the bus."""

from typing import assert_never

from livescale.services.planner.scales import Command
from livescale.shared.bus.contract import Bus, Context
from livescale.shared.messages.live import Help
from livescale.shared.messages.pipelines import Pipeline, PipelineOver
from livescale.shared.messages.transfers import Abort, Drain, Load, Send, Serve
from livescale.shared.subjects import ABORT, DRAIN, HELP, LOAD, PIPELINE, PIPELINE_OVER, SEND, SERVE

COMMAND_SECONDS = 5.0


async def send(bus: Bus, command: Command) -> None:
    """Returns once it was taken. Raises BusError."""
    node, message = command.node, command.message
    match message:
        case Load():
            await bus.call(LOAD, message, timeout=COMMAND_SECONDS, context=_fence(message.epoch), id=node)
        case Send():
            await bus.call(SEND, message, timeout=COMMAND_SECONDS, context=_fence(message.epoch), id=node)
        case Serve():
            await bus.call(SERVE, message, timeout=COMMAND_SECONDS, context=_fence(message.epoch), id=node)
        case Drain():
            await bus.call(DRAIN, message, timeout=COMMAND_SECONDS, context=_fence(message.epoch), id=node)
        case Abort():
            await bus.call(ABORT, message, timeout=COMMAND_SECONDS, id=node)
        case Help():
            await bus.call(HELP, message, timeout=COMMAND_SECONDS, context=_fence(message.epoch), id=node)
        case Pipeline():
            await bus.call(PIPELINE, message, timeout=COMMAND_SECONDS, context=_fence(message.epoch), id=node)
        case PipelineOver():
            bus.publish(PIPELINE_OVER, message, id=node)
        case _:
            assert_never(message)


def _fence(epoch: int) -> Context:
    return Context(epoch=epoch)
