"""Sending: chunks go out in the order they are asked for, each as soon as it is there, a few at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

from livescale.shared.links.contract import Buffer, Link, LinkError
from livescale.shared.transfer.chunks import Chunk
from livescale.shared.transfer.flow_end import TOLD, FlowEnd, together
from livescale.shared.transfer.signs import give_signs
from livescale.shared.transfer.timeouts import Pace
from livescale.shared.transfer.turns import Turns

SENDS = 2  # in flight per flow: one moves while the next is announced


async def feed(
    link: Link,
    end: FlowEnd,
    wait_here: Callable[[Chunk], Awaitable[None]],
    turns: Turns | None = None,
    steps: Mapping[int, int] | None = None,
) -> None:
    """Send the receiver the chunks it asks for, each once `wait_here(chunk)` returns, and its step has come.

    `steps` maps blocks to steps of `turns`. The receiver closes the connection: it knows when it has everything.
    Raises TransferFailed when it is lost, and whatever `wait_here` raises.
    """
    now = asyncio.get_running_loop().time
    pace, done = Pace(end.part.patience, SENDS, now()), asyncio.Event()
    turns, order = turns or Turns(), steps or {}

    async def lane(chunks: tuple[Chunk, ...]) -> None:
        async with asyncio.timeout(None) as deadline:  # one for all: making one costs more than handing a chunk over
            for chunk in chunks:
                step = order.get(chunk.block)
                if step is not None:
                    await turns.reached(step)
                deadline.reschedule(now() + end.part.patience.first)
                await wait_here(chunk)
                deadline.reschedule(None)
                pace.restart(now())
                buffer = Buffer(memoryview(TOLD)) if chunk.block in wanted.mapped else end.part.buffer(chunk)
                await peer.send(end.tag(chunk), buffer, timeout=pace.limit)
                pace.moved(now())
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
            await together(send_all(), give_signs(end, peer, done))
            undo.pop_all()
    except TimeoutError:
        raise end.failed("what it waits for is not here in time") from None
    except LinkError as error:
        raise end.failed(str(error)) from error
