"""Nodes of a transfer within one process: a link each, over a real transport."""

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack

import pytest

from livescale.shared.links.open import open_link
from livescale.shared.runtime.settings import LinkSettings
from tests.shared.transfer.transfer_peer import OpenPeers, TransferPeer


@pytest.fixture
def executor() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture(params=["ucx", "socket"])
async def open_peers(request: pytest.FixtureRequest, executor: Executor) -> AsyncIterator[OpenPeers]:
    async with AsyncExitStack() as stack:
        made: list[TransferPeer] = []

        async def open_some(count: int) -> list[TransferPeer]:
            for _ in range(count):
                link = await open_link(LinkSettings(transport=request.param))
                stack.push_async_callback(link.close)
                made.append(await stack.enter_async_context(TransferPeer(f"worker-{len(made)}", link, executor)))
            return made[-count:]

        yield open_some
