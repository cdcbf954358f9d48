"""What a host reads for a scale is told in that scale's trace."""

from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from livescale.shared.bus.contract import Context
from livescale.shared.messages.transfers import Send
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.subjects import SEND
from tests.checkpoints import copy_checkpoint, tiny_checkpoint
from tests.host.local import HOST, LocalHost, SlowDisk, in_virtual_time, local_host
from tests.host.test_checkpoint_reader import described, wanted
from tests.spans import CALLER, seconds, trace_id, traced

BLOCKS = 5  # each takes a second


async def send(here: LocalHost, directory: Path, source: Path, traceparent: str | None = CALLER) -> None:
    """Have a host send, to nobody, what was found in `source` and should be in `directory`."""
    from_disk = wanted(directory, described(source))
    version = from_disk.manifest.version
    command = Send(plan_id="p", version=version, outflows=[], chunk_bytes=1 << 20, epoch=1, from_disk=from_disk)
    await here.bus.call(SEND, command, timeout=5, context=Context(epoch=1, traceparent=traceparent), id=HOST)


def told(directory: Path, *traceparents: str | None, read_before: bool = False) -> tuple[ReadableSpan, ...]:
    """The spans of a host that reads a model once, for as many scales as there are traceparents."""
    telemetry = Telemetry("host", HOST)
    kept = traced(telemetry)

    async def main() -> None:
        async with local_host(SlowDisk(), telemetry=telemetry) as here:
            if read_before:
                await here.read(directory)
                await here.whole()
            for traceparent in traceparents:
                await send(here, directory, tiny_checkpoint("llama"), traceparent)
            await here.whole()

    in_virtual_time(main())
    return kept.get_finished_spans()


def test_a_model_that_is_read_for_a_scale_is_a_span_of_it() -> None:
    [span] = told(tiny_checkpoint("llama"), CALLER, CALLER[:-4] + "9-01")
    assert (span.name, trace_id(span)) == ("read", CALLER[3:35])
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == CALLER[36:52]
    start, end = seconds(span)
    assert end - start == pytest.approx(BLOCKS, abs=0.5)
    attributes = dict(span.attributes or {})
    assert attributes["livescale.read.blocks"] == BLOCKS
    assert attributes["livescale.read.source"] == "safetensors"


def test_what_was_in_memory_before_and_what_no_trace_asks_for_makes_no_span() -> None:
    assert told(tiny_checkpoint("llama"), CALLER, read_before=True) == ()
    assert told(tiny_checkpoint("llama"), None) == ()


def test_a_read_that_fails_is_told_as_failed(tmp_path: Path) -> None:
    directory = copy_checkpoint("llama", tmp_path)
    weights = max(directory.glob("*.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1  # it looks well until the block of these bytes is read
    weights.write_bytes(content)
    [span] = told(directory, CALLER)
    assert dict(span.attributes or {})["error.type"] == "failed"
