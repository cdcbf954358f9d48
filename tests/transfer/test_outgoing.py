"""Sends that a node was told to make: begun once, or refused by name."""

import asyncio

import pytest

from shared.bus.contract import Refusal
from shared.links.contract import Link
from shared.messages.scaling import Node, Outflow, Send
from shared.transfer.chunks import Chunk
from shared.transfer.outgoing import Outgoing
from tests.host.site import NoLink


def command(ticket: int, chunk_bytes: int) -> Send:
    child = Outflow(ticket=ticket, downstream=Node(id="w", place="worker", address=b"nowhere"))
    return Send(plan_id="p", version="v", outflows=[child], chunk_bytes=chunk_bytes, epoch=1)


async def here(chunk: Chunk) -> None: ...


@pytest.mark.parametrize(
    ("ticket", "chunk_bytes", "reason"), [(1 << 24, 1024, "ticket 16777216"), (7, 0, "chunk_bytes")]
)
async def test_a_send_that_fits_no_tag_is_refused_and_not_begun(ticket: int, chunk_bytes: int, reason: str) -> None:
    link: Link = NoLink()
    async with asyncio.TaskGroup() as tasks:
        outgoing = Outgoing("host-0", link, tasks, on_change=lambda: None)
        with pytest.raises(Refusal, match=f"plan p: {reason}") as refused:
            outgoing.start(command(ticket, chunk_bytes), [memoryview(bytes(4096))], here)
        assert refused.value.code == 400
        assert (len(outgoing), outgoing.none.is_set()) == (0, True)
