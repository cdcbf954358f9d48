"""A flow that is sent for a scale is told in that scale's trace, and how it ended."""

import asyncio

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from livescale.shared.process.telemetry import Telemetry
from livescale.shared.simulation import virtual_time
from livescale.shared.transfer.sender import BlockSender
from livescale.shared.transfer.spans import FlowSpans
from tests.clocks import LoopClock
from tests.shared.transfer.test_sender import SilentLink, command, here
from tests.spans import CALLER, UNSAMPLED, seconds, trace_id, traced

PATIENCE_SECONDS = 30.0  # that a sender has with a receiver that asks for nothing


def sent(traceparent: str | None, abort_after: float) -> tuple[ReadableSpan, ...]:
    """The spans of a flow to a receiver that never asks."""

    async def main() -> InMemorySpanExporter:
        telemetry = Telemetry("host", "host-0")
        kept = traced(telemetry)
        spans = FlowSpans(telemetry.spans, LoopClock(epoch=1_000.0))
        async with asyncio.TaskGroup() as tasks:
            outgoing = BlockSender("host-0", SilentLink(), tasks, lambda: None, spans=spans)
            outgoing.start(command(7, 1024), [memoryview(bytes(4096))], here, traceparent=traceparent)
            await asyncio.sleep(abort_after)
            outgoing.abort("p")
            await outgoing.none.wait()
        return kept

    return virtual_time.run(main(), limit_seconds=200).get_finished_spans()


@pytest.mark.parametrize(("abort_after", "took", "error"), [(2.0, 2.0, "aborted"), (100.0, PATIENCE_SECONDS, "failed")])
def test_a_flow_is_a_span_from_the_command_to_its_end(abort_after: float, took: float, error: str) -> None:
    [span] = sent(CALLER, abort_after)
    assert (span.name, trace_id(span)) == ("send", CALLER[3:35])
    start, end = seconds(span)
    assert end - start == pytest.approx(took)
    assert dict(span.attributes or {}) == {
        "livescale.scale.id": "p",
        "livescale.flow.sender": "host-0",
        "livescale.flow.receiver": "w",
        "error.type": error,
    }


@pytest.mark.parametrize("traceparent", [None, UNSAMPLED])
def test_a_flow_of_no_trace_makes_no_span(traceparent: str | None) -> None:
    assert sent(traceparent, 2.0) == ()
