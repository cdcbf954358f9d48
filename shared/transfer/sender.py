"""What a node sends for plans: one task for each flow, which ends with an abort of the plan.

Chunks go out in the order in which the receiver asks for them, each as soon as it is here, a few at a time.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, nullcontext

import structlog

from livescale.shared.bus.contract import Refusal
from livescale.shared.links.contract import Buffer, Link, LinkError, Views
from livescale.shared.messages.transfers import Send
from livescale.shared.process.otlp import SpanWriter, TimedSpan
from livescale.shared.process.run import World
from livescale.shared.runtime.clock import Clock
from livescale.shared.runtime.waiting import Changes, MovingDeadline, together
from livescale.shared.transfer.chunks import Chunk
from livescale.shared.transfer.flow_end import (
    TOLD,
    BlocksLost,
    FlowEnd,
    LostFlows,
    ModelCopy,
    NeverReached,
    TransferFailed,
    send_heartbeats,
)
from livescale.shared.transfer.memory_export import MemoryExport, Offer

SENDS = 2  # in flight per flow: one moves while the next is announced

log = structlog.get_logger()


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


class Turns:
    """How many chunks each flow, by its ticket, has left to send in each step.

    Where a schedule has steps, all the flows of a sender together send one block in each (LambdaScale 4.2): a step
    begins when no flow has anything left of an earlier one. A flow that ends early holds up no other.
    """

    def __init__(self) -> None:
        self._left: dict[int, Counter[int]] = {}
        self._changed = Changes()

    def join(self, ticket: int, steps: Iterable[int]) -> None:
        """Note the step of each chunk that a flow is to send, in the place of what was noted for it before."""
        self._left[ticket] = Counter(steps)
        self._changed.tell()

    def leave(self, ticket: int) -> None:
        self._left.pop(ticket, None)
        self._changed.tell()

    def sent(self, ticket: int, step: int) -> None:
        left = self._left[ticket]
        left[step] -= 1
        if not left[step]:
            del left[step]
            self._changed.tell()

    async def reached(self, step: int) -> None:
        while any(other < step for left in self._left.values() for other in left):
            await self._changed.wait()


async def send_chunks(
    link: Link,
    end: FlowEnd,
    wait_here: Callable[[Chunk], Awaitable[None]],
    turns: Turns | None = None,
    steps: Mapping[int, int] | None = None,
) -> None:
    """Send the chunks that the receiver asks for, each once `wait_here(chunk)` returns and its step has come.

    `steps` maps blocks to steps of `turns`. The receiver closes the connection, as it knows when it has everything.
    What was handed over fast lies in buffers, and says nothing about a slow link: a send has the same long time always.
    A receiver that is dead is found by its lease. Raises TransferFailed when the receiver is lost, and whatever
    `wait_here` raises.
    """
    now, patience = asyncio.get_running_loop().time, end.copy.timeouts.first
    done, turns, order = asyncio.Event(), turns or Turns(), steps or {}

    async def lane(chunks: tuple[Chunk, ...]) -> None:
        async with MovingDeadline() as deadline:  # one for all: making one costs more than handing a chunk over
            for chunk in chunks:
                step = order.get(chunk.block)
                if step is not None:
                    await turns.reached(step)
                deadline.move(now() + patience)
                await wait_here(chunk)
                deadline.move(None)
                view = memoryview(TOLD) if chunk.block in wanted.mapped else end.copy.view(chunk)
                await peer.send(end.tag(chunk), Buffer(view), timeout=patience)
                if step is not None:
                    turns.sent(end.ticket, step)

    async def send_all() -> None:
        await together(*(lane(wanted.chunks[start::SENDS]) for start in range(SENDS)))
        done.set()

    peer = await end.connect(link)
    try:
        async with AsyncExitStack() as undo:
            undo.push_async_callback(peer.close)  # the receiver learns at once that nothing more will come
            wanted = await end.hear(peer)
            turns.join(end.ticket, (order[chunk.block] for chunk in wanted.chunks if chunk.block in order))
            await together(send_all(), send_heartbeats(end, peer, done))
            undo.pop_all()
    except TimeoutError:
        raise end.failed("the data to send did not arrive here in time") from None
    except LinkError as error:
        # A receiver that has everything closes the connection, perhaps before the last heartbeat is on its way.
        if not done.is_set():
            raise end.failed(str(error)) from error


class BlockSender:
    """Sends blocks along flows, one task for each. `on_change` is called whenever the number of flows changes.

    `spans` tells of each flow in the trace of its scale, `lost` of those that end here while their receiver may not
    know.
    """

    def __init__(
        self,
        node: str,
        link: Link,
        tasks: asyncio.TaskGroup,
        on_change: Callable[[], None],
        export: MemoryExport | None = None,
        spans: FlowSpans | None = None,
        lost: LostFlows | None = None,
    ) -> None:
        self._node = node
        self._link = link
        self._export = export
        self._spans = spans
        self._lost = lost
        self._tasks = tasks
        self._on_change = on_change
        self._flows: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._receivers: dict[tuple[str, int], str] = {}  # of the same
        self.none = asyncio.Event()
        self.none.set()

    @classmethod
    def of(
        cls,
        world: World,
        link: Link,
        tasks: asyncio.TaskGroup,
        on_change: Callable[[], None],
        export: MemoryExport | None,
    ) -> "BlockSender":
        """Make the sender of a process, which tells its spans and the bus of its flows."""
        spans, lost = FlowSpans.of(world), LostFlows(world.bus, world.clock)
        return cls(world.info.id, link, tasks, on_change, export, spans, lost)

    def __len__(self) -> int:
        return len(self._flows)

    @property
    def plans(self) -> set[str]:
        """The ids of the plans whose flows are under way."""
        return {plan for plan, _ in self._flows}

    def start(
        self,
        command: Send,
        memory: Views,
        wait_here: Callable[[Chunk], Awaitable[None]],
        offer: Offer | None = None,
        traceparent: str | None = None,
    ) -> None:
        """Send each chunk of the blocks in `memory` that receivers ask for, once it is here.

        Flows of an earlier command that are named again go on as they do. Receivers on this machine may map what
        `offer` returns. `traceparent` names the span of the scale. Raises Refusal 400 for blocks or tickets that fit no
        tag.
        """
        plan_id, outflows = command.plan_id, command.outflows
        try:
            copy = ModelCopy(self._node, command.chunk_bytes, memory)
            ends = {flow.ticket: FlowEnd(copy, flow.ticket, flow.downstream, command.secret) for flow in outflows}
            steps = {flow.ticket: dict(zip(flow.blocks, flow.steps, strict=True)) for flow in outflows if flow.steps}
        except ValueError as error:
            raise Refusal(400, f"plan {plan_id}: {error}") from error
        turns = Turns()
        for ticket, end in ends.items():
            if (plan_id, ticket) not in self._flows:
                turns.join(ticket, steps.get(ticket, {}).values())
                feeding = send_chunks(self._link, end, wait_here, turns, steps.get(ticket))
                sending = self._send(command, end, feeding, traceparent)
                self._begin((plan_id, ticket), end, feeding, sending, turns)
                if self._export is not None:
                    self._export.offer(end, offer or _nothing)
        self._on_change()

    def _begin(
        self,
        key: tuple[str, int],
        end: FlowEnd,
        feeding: Coroutine[None, None, None],
        sending: Coroutine[None, None, None],
        turns: Turns,
    ) -> None:
        flow = self._flows[key] = self._tasks.create_task(sending)
        self._receivers[key] = end.other.id

        def ended(_: asyncio.Task[None]) -> None:  # also when it is cancelled before its first step
            feeding.close()
            turns.leave(end.ticket)
            if self._export is not None:
                self._export.withdraw(end)
            del self._flows[key], self._receivers[key]
            if not self._flows:
                self.none.set()
            self._on_change()

        flow.add_done_callback(ended)
        self.none.clear()

    async def _send(
        self, command: Send, end: FlowEnd, feeding: Coroutine[None, None, None], traceparent: str | None
    ) -> None:
        plan_id = command.plan_id
        try:
            with self._spans.sending(traceparent, plan_id, end) if self._spans else nullcontext():
                if command.setup_seconds:
                    await asyncio.sleep(command.setup_seconds)
                await feeding
            log.info("blocks_sent", plan=plan_id, to=end.other.id)
        except (TransferFailed, BlocksLost) as error:
            log.warning("send_failed", plan=plan_id, error=str(error))
            # Else the receiver tells the planner, or it is dead, which its lease shows.
            if self._lost is not None and isinstance(error, NeverReached):
                self._lost.tell(plan_id, end.other.id, end.ticket, error)

    def abort(self, plan_id: str) -> None:
        """Cancel the flows of a plan, if there are any. Idempotent."""
        for (plan, _), flow in self._flows.items():
            if plan == plan_id:
                flow.cancel()

    def abort_all(self, reason: str) -> None:
        """Cancel the flows of all plans, and say so: their planner does not know it, nor does a receiver that has not
        been reached yet."""
        for (plan_id, ticket), flow in self._flows.items():
            flow.cancel()
            if self._lost is not None:
                receiver = self._receivers[plan_id, ticket]
                self._lost.tell(plan_id, receiver, ticket, TransferFailed(self._node, receiver, reason))


async def _nothing() -> None:
    """Offer nothing: this memory cannot be mapped by other processes."""
