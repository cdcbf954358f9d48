"""What the planner gives the bus: commands to workers and hosts, and its records to the key-value store."""

import asyncio
from typing import assert_never

import structlog

from livescale.services.planner.running_scale import NodeCommand, RunningScale
from livescale.shared.bus.contract import Bus, BusError, Context, KeyValue, Refusal, ServiceAbsent, TooLarge
from livescale.shared.bus.write_behind import WriteBehind
from livescale.shared.messages.disaggregation import ChangeRole
from livescale.shared.messages.live import Help
from livescale.shared.messages.model_parallel import Pipeline, PipelineOver
from livescale.shared.messages.scaling import ScaleRecord
from livescale.shared.messages.transfers import Abort, Drain, Load, Send, Serve
from livescale.shared.runtime.clock import Clock
from livescale.shared.subjects import ABORT, CHANGE_ROLE, DRAIN, HELP, LOAD, PIPELINE, PIPELINE_OVER, PLAN, SEND, SERVE

COMMAND_SECONDS = 5.0  # in which a node answers
TOO_LATE = 504  # the code of an answer that did not come in time
PREFIX = "scales"  # of the keys
KEPT = 100  # records
RECORD_SECONDS = 0.02  # between two records of a scale

log = structlog.get_logger()


async def send(bus: Bus, command: NodeCommand, traceparent: str | None = None) -> None:
    """Send a command by the call that has its name, and return once the node has accepted it. `traceparent` names the
    scale's span. Raises BusError."""
    node, message = command.node, command.message
    match message:
        case Load():
            context = Context(epoch=message.epoch, traceparent=traceparent)
            await bus.call(LOAD, message, timeout=COMMAND_SECONDS, context=context, id=node)
        case Send():
            context = Context(epoch=message.epoch, traceparent=traceparent)
            await bus.call(SEND, message, timeout=COMMAND_SECONDS, context=context, id=node)
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
        case ChangeRole():
            await bus.call(CHANGE_ROLE, message, timeout=COMMAND_SECONDS, id=node)
        case PipelineOver():
            bus.publish(PIPELINE_OVER, message, id=node)
        case _:
            assert_never(message)


def is_final(error: BusError) -> bool:
    """Say whether an error says something of the command or its node, and not only that no answer came in time."""
    return isinstance(error, TooLarge | ServiceAbsent) or (isinstance(error, Refusal) and error.code != TOO_LATE)


def _fence(epoch: int) -> Context:
    return Context(epoch=epoch)


class SavedRecords:
    """The records of scales in the bus's key-value store, so that a successor can show them and continue the scales.

    `put` returns at once. `run` does the writing, and repeats what fails until it succeeds.
    """

    def __init__(self, store: KeyValue) -> None:
        self._kept: dict[str, None] = {}  # ids, oldest first
        self._writing = WriteBehind(store, "records")
        self.run = self._writing.run
        self.save_again = self._writing.save_again

    async def load(self) -> list[ScaleRecord]:
        """Return the records that an earlier planner left, oldest first. There are none on a server that keeps
        nothing."""
        found = await self._writing.load(PREFIX, ScaleRecord)
        records = sorted(found.values(), key=lambda record: (record.decision.at, record.id))
        self._kept = {record.id: None for record in records}
        return records

    def put(self, record: ScaleRecord) -> None:
        """Save a record as soon as possible. The oldest are deleted once there are more than `KEPT`."""
        self._kept[record.id] = None
        self._writing.set(f"{PREFIX}.{record.id}", record)
        for id in list(self._kept)[:-KEPT]:
            del self._kept[id]
            self._writing.set(f"{PREFIX}.{id}", None)


class RecordOutbox:
    """Publishes and saves the records of scales: at once, but not two of a scale within `RECORD_SECONDS`.

    A record is all of a scale. One at every change would take bytes by the square of a scale's targets.
    """

    def __init__(self, bus: Bus, clock: Clock, saved: SavedRecords) -> None:
        self._bus = bus
        self._clock = clock
        self._saved = saved
        self._told: dict[str, float] = {}  # when the last records were published
        self._waiting: dict[str, RunningScale] = {}
        self._news = asyncio.Event()

    def put(self, scale: RunningScale, *, at_once: bool) -> None:
        """Publish and save the scale as it is now; or, unless `at_once`, with what else will have changed in a
        moment."""
        now = self._clock.now()
        self._told = {id: at for id, at in self._told.items() if now - at < RECORD_SECONDS}
        if at_once or scale.id not in self._told:
            self._tell(scale)
        else:
            self._waiting[scale.id] = scale
            self._news.set()

    async def run(self) -> None:
        """Publish the records that wait every `RECORD_SECONDS`, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            await asyncio.sleep(RECORD_SECONDS)
            for scale in list(self._waiting.values()):
                self._tell(scale)

    def _tell(self, scale: RunningScale) -> None:
        record = scale.record()
        try:
            self._bus.publish(PLAN, record, id=scale.id)
        except TooLarge as error:  # of many hundred targets; the scale goes on
            log.warning("record_not_published", scale=scale.id, error=str(error))
        self._saved.put(record)
        self._waiting.pop(scale.id, None)
        self._told[scale.id] = self._clock.now()
