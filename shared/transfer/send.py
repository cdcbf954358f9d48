"""Sending: chunks go out in order, each as soon as it is there, a few at a time."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from shared.links.contract import Link, LinkError
from shared.messages.scaling import Node
from shared.transfer.chunks import Chunk
from shared.transfer.part import Part, TransferFailed, together
from shared.transfer.patience import Pace

SENDS = 2  # in flight per child: one moves while the next is announced


async def send_blocks(link: Link, part: Part, wait_ready: Callable[[int], Awaitable[None]]) -> None:
    """A source's part: send each child what it asks for, a block once `wait_ready(index)` returns.

    A lost child does not stop the others. Raises TransferFailed when all are over (the first child that was lost),
    and at once whatever `wait_ready` raises.
    """
    failures: list[TransferFailed] = []
    await together(
        *(feed(link, part, child, lambda chunk: wait_ready(chunk.block), failures.append) for child in part.downstream)
    )
    if failures:
        raise failures[0]


async def feed(
    link: Link,
    part: Part,
    child: Node,
    wait_here: Callable[[Chunk], Awaitable[None]],
    on_lost: Callable[[TransferFailed], None],
) -> None:
    """Send one child the chunks it asks for, each once `wait_here(chunk)` returns. A lost child is told to `on_lost`,
    and so is one for which nothing is here for as long as it would wait.

    The child closes the connection: it knows when it has everything.
    """
    pace = Pace(part.patience, SENDS)
    now = asyncio.get_running_loop().time

    async def lane(chunks: tuple[Chunk, ...]) -> None:
        for chunk in chunks:
            # Nobody is told that a child was lost before something is sent to it; and it waits no longer either.
            async with asyncio.timeout(max(part.patience.first, pace.timeout(chunk))):
                await wait_here(chunk)
            await peer.send(part.tag(chunk), part.buffer(chunk), timeout=pace.timeout(chunk))
            pace.moved(now())

    try:
        peer = await part.connect(link, child)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(peer.close)  # the child learns at once that nothing more will come
            wanted = await part.hear(peer)
            await together(*(lane(wanted[start::SENDS]) for start in range(SENDS)))
            undo.pop_all()
    except TransferFailed as failure:
        on_lost(failure)
    except TimeoutError:
        on_lost(TransferFailed(part.node, child.id, "what it waits for is not here in time"))
    except LinkError as error:
        on_lost(TransferFailed(part.node, child.id, str(error)))
