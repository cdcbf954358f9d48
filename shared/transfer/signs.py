"""Signs of life on a flow: a hop that waits for its own upstream is slow through no fault of its own, and shows it."""

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress

from livescale.shared.links.contract import Buffer, Peer
from livescale.shared.transfer.flow_end import FlowEnd

HERE, LAST = b"\0", b"\1"
LONG_SECONDS = 3600.0  # whoever receives signs has a deadline of its own


async def give_signs(end: FlowEnd, peer: Peer, done: asyncio.Event) -> None:
    """One at once, one every now and then, and the last when everything was sent. Raises LinkError."""
    patience = end.part.patience
    for number in itertools.count():
        word = LAST if done.is_set() else HERE
        await peer.send(end.sign_tag(number), Buffer(memoryview(word)), timeout=patience.first)
        if word == LAST:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(patience.sign_seconds):
                await done.wait()


async def hear_signs(end: FlowEnd, peer: Peer, heard: Callable[[], None]) -> None:
    """Until the last one, so that no receive is left behind when the flow ends. Raises LinkError."""
    for number in itertools.count():
        word = bytearray(len(HERE))
        await peer.receive(end.sign_tag(number), Buffer(memoryview(word)), timeout=LONG_SECONDS)
        heard()
        if word == LAST:
            return
