"""Sends that a node was told to make: begun once, or refused by name; their flows are told in the scale's trace."""

import asyncio
import struct
from contextlib import nullcontext

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from livescale.shared.bus.contract import Refusal, Subscription
from livescale.shared.links.contract import Buffer, Link, LinkError, Peer
from livescale.shared.messages.transfers import Node, Outflow, Send, Transfer
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.runtime.clock import SystemClock
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import TRANSFER
from livescale.shared.transfer.chunks import Chunk
from livescale.shared.transfer.flow_end import FlowEnd, LostFlows, ModelCopy, TransferFailed
from livescale.shared.transfer.sender import BlockSender, FlowSpans, send_chunks
from tests.clocks import LoopClock
from tests.host.local import NoLink
from tests.shared.transfer.virtual_link import NO_LINK
from tests.spans import CALLER, UNSAMPLED, seconds, trace_id, traced


class SilentPeer:
    """A peer that is alive and says nothing, like a process that is stopped."""

    path = NO_LINK

    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        await asyncio.sleep(timeout)
        raise LinkError("too late")

    receive = send

    async def close(self) -> None:
        pass


class SilentLink:
    address = b"silent"

    async def connect(self, address: bytes, *, timeout: float, channel: int = 0, secret: bytes = b"") -> Peer:
        return SilentPeer()

    async def close(self) -> None:
        pass


class LeavingPeer:
    """A receiver that asks for two chunks and closes the connection once it has `wanted` of them."""

    path = NO_LINK

    def __init__(self, end: FlowEnd, wanted: int) -> None:
        self._chunks = {end.tag(chunk) for chunk in end.copy.chunks}
        self._wanted = wanted
        self.closed = False

    async def receive(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        assert isinstance(buffer.view, memoryview)
        buffer.view[:] = struct.pack("<2I", 0, 1)

    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        if not self._wanted:
            raise LinkError("the peer closed the channel")
        self._wanted -= tag in self._chunks

    async def close(self) -> None:
        self.closed = True


class LeavingLink(SilentLink):
    """Leads to one peer."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    async def connect(self, address: bytes, *, timeout: float, channel: int = 0, secret: bytes = b"") -> Peer:
        return self._peer


def command(ticket: int, chunk_bytes: int) -> Send:
    child = Outflow(ticket=ticket, downstream=Node(id="w", place="worker", address=b"nowhere"))
    return Send(plan_id="p", version="v", outflows=[child], chunk_bytes=chunk_bytes, epoch=1)


async def here(chunk: Chunk) -> None: ...


@pytest.mark.parametrize("seconds", [1.0, 100.0], ids=["aborted", "left alone"])
def test_a_child_that_never_asks_is_counted_until_the_plan_is_aborted_or_patience_ends(seconds: float) -> None:
    async def main() -> None:
        changes = []
        async with asyncio.TaskGroup() as tasks:
            outgoing = BlockSender("host-0", SilentLink(), tasks, on_change=lambda: changes.append(len(outgoing)))
            outgoing.start(command(7, 1024), [memoryview(bytes(4096))], here)
            await asyncio.sleep(seconds)
            assert len(outgoing) == (1 if seconds < 30 else 0)
            outgoing.abort("p")
            await outgoing.none.wait()
        assert changes == [1, 0]

    virtual_time.run(main(), limit_seconds=200)


@pytest.mark.parametrize(
    ("ticket", "chunk_bytes", "reason"), [(1 << 24, 1024, "ticket 16777216"), (7, 0, "chunk_bytes")]
)
async def test_a_send_that_fits_no_tag_is_refused_and_not_begun(ticket: int, chunk_bytes: int, reason: str) -> None:
    link: Link = NoLink()
    async with asyncio.TaskGroup() as tasks:
        outgoing = BlockSender("host-0", link, tasks, on_change=lambda: None)
        with pytest.raises(Refusal, match=f"plan p: {reason}") as refused:
            outgoing.start(command(ticket, chunk_bytes), [memoryview(bytes(4096))], here)
        assert refused.value.code == 400
        assert (len(outgoing), outgoing.none.is_set()) == (0, True)


@pytest.mark.parametrize("wanted", [1, 2], ids=["one is missing", "it has everything"])
async def test_a_receiver_that_closes_the_connection_is_lost_only_where_chunks_are_missing(wanted: int) -> None:
    end = FlowEnd(ModelCopy("host-0", 1024, [memoryview(bytes(2048))]), 7, Node(id="w", place="worker", address=b"w"))
    peer = LeavingPeer(end, wanted)
    lost = pytest.raises(TransferFailed, match="the peer closed the channel") if wanted == 1 else nullcontext()
    with lost:
        await send_chunks(LeavingLink(peer), end, here)
    assert peer.closed


class BufferedPeer(SilentPeer):
    """A receiver behind a slow link, whose first chunks go into buffers at once. Each that follows takes 3 s."""

    def __init__(self, end: FlowEnd, buffered: int) -> None:
        self._chunks = {end.tag(chunk) for chunk in end.copy.chunks}
        self._buffered = buffered
        self.taken = 0

    async def receive(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        assert isinstance(buffer.view, memoryview)
        buffer.view[:] = struct.pack(f"<{len(self._chunks)}I", *range(len(self._chunks)))

    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        if tag not in self._chunks:
            return
        seconds = 3.0 if self.taken >= self._buffered else 0.0
        await asyncio.sleep(min(seconds, timeout))
        if timeout < seconds:
            raise LinkError(f"send took more than {timeout:g} s")
        self.taken += 1


def test_a_slow_link_whose_buffers_took_the_first_chunks_at_once_is_waited_for() -> None:
    async def main() -> None:
        await send_chunks(LeavingLink(peer), end, here)

    end = FlowEnd(
        ModelCopy("host-0", 1024, [memoryview(bytes(8 * 1024))]), 7, Node(id="w", place="worker", address=b"")
    )
    peer = BufferedPeer(end, buffered=4)
    virtual_time.run(main(), limit_seconds=100)
    assert peer.taken == 8


class Unreachable(SilentLink):
    async def connect(self, address: bytes, *, timeout: float, channel: int = 0, secret: bytes = b"") -> Peer:
        raise LinkError("connect: the destination is unreachable")


async def has_heard_of_the_loss(told: Subscription[Transfer], why: str) -> None:
    """Check that the flow with ticket 7 is said to be broken on behalf of its receiver."""
    async with asyncio.timeout(60):
        event = (await anext(aiter(told))).message
    assert (event.plan_id, event.node, event.state, event.ticket) == ("p", "w", "broken", 7)
    assert why in str(event.error)


async def test_who_cannot_reach_a_receiver_says_for_it_that_the_flow_is_lost() -> None:
    bus = LocalBroker().connect()
    told = await bus.subscribe(TRANSFER)
    async with asyncio.TaskGroup() as tasks:
        outgoing = BlockSender("host-0", Unreachable(), tasks, lambda: None, lost=LostFlows(bus, SystemClock()))
        outgoing.start(command(7, 1024), [memoryview(bytes(4096))], here)
    await has_heard_of_the_loss(told, "the destination is unreachable")


async def test_who_gives_all_flows_up_says_so_for_receivers_that_know_of_nothing_yet() -> None:
    bus = LocalBroker().connect()
    told = await bus.subscribe(TRANSFER)
    async with asyncio.TaskGroup() as tasks:
        outgoing = BlockSender("worker-1", SilentLink(), tasks, lambda: None, lost=LostFlows(bus, SystemClock()))
        outgoing.start(command(7, 1024), [memoryview(bytes(4096))], here)
        outgoing.abort_all("worker-1 gave its parameters back")  # before the receiver is reached
        await outgoing.none.wait()
    await has_heard_of_the_loss(told, "worker-1 gave its parameters back")


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
