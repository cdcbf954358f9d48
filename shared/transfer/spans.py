"""What a node sent for a scale, as spans of the scale's trace: one for each flow, when it is over."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from livescale.shared.process.otlp import SpanWriter
from livescale.shared.process.run import World
from livescale.shared.process.spans import TimedSpan
from livescale.shared.runtime.clock import Clock
from livescale.shared.transfer.flow_end import FlowEnd, TransferFailed
from livescale.shared.transfer.waiting import BlocksLost


class FlowSpans:
    """Sends the spans of one node's outgoing flows, where scales are traced."""

    def __init__(self, writer: SpanWriter | None, clock: Clock) -> None:
        self._writer = writer
        self._clock = clock

    @classmethod
    def of(cls, world: World) -> "FlowSpans":
        """Make the spans of a node from the telemetry and the clock of its process."""
        return cls(world.telemetry.spans, world.clock)

    @contextmanager
    def sending(self, traceparent: str | None, plan_id: str, end: FlowEnd) -> Iterator[None]:
        """The flow from this `end` is sent inside the block. `traceparent` names the span of the scale."""
        if self._writer is None or traceparent is None:
            yield
            return
        began, error = self._clock.wall(), None
        try:
            yield
        except (TransferFailed, BlocksLost):
            error = "failed"
            raise
        except asyncio.CancelledError:
            error = "aborted"
            raise
        finally:
            attributes = {
                "livescale.scale.id": plan_id,
                "livescale.flow.sender": end.copy.node,
                "livescale.flow.receiver": end.other.id,
            }
            self._writer.write(traceparent, [TimedSpan("send", began, self._clock.wall(), attributes, error=error)])
