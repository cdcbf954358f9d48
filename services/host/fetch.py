"""Receiving a model into the host cache from a node that has all of it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from shared.links.contract import Link
from shared.messages.copies import FetchModel
from shared.transfer.incoming import Events, Incoming
from shared.transfer.part import Part, TransferFailed


async def fetch_blocks(
    link: Link,
    node: str,
    command: FetchModel,
    blocks: list[memoryview],
    hashing: Executor,
    on_block: Callable[[int], None],
) -> None:
    """Return once every block is here and right.

    Raises TransferFailed when a flow is lost, ValueError for flows that fit no blocks.
    """
    lost: list[TransferFailed] = []

    def broken(ticket: int, failure: TransferFailed) -> None:
        lost.append(failure)
        receiving.cancel()

    part = Part(node, command.chunk_bytes, blocks, secret=command.secret)
    events = Events(first_byte=lambda: None, block=on_block, broken=broken)
    try:
        async with asyncio.TaskGroup() as tasks:
            incoming = Incoming(link, part, command.manifest.blocks, hashing, events, tasks)
            receiving = tasks.create_task(incoming.run())
            incoming.follow(command.inflows)
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    if lost:
        raise lost[0]
