"""Nodes of a transfer within one process: a link each, over a real transport."""

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack

import pytest

from livescale.shared.links import process_memory, ucx_peer
from livescale.shared.links.open import open_link
from livescale.shared.runtime.settings import LinkSettings
from tests.shared.transfer.transfer_peer import CHUNK, OpenPeers, TransferPeer


@pytest.fixture
def executor() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture(params=["ucx", "copied", "socket"])
async def open_peers(
    request: pytest.FixtureRequest, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[OpenPeers]:
    """`copied`: over UCX, and messages are copied from where they lie at the sender, chunks hashed meanwhile."""
    settings = LinkSettings(transport="socket" if request.param == "socket" else "ucx")
    if request.param == "copied":
        monkeypatch.setattr(ucx_peer, "LEAST_COPIED", 1)
        monkeypatch.setattr(process_memory, "PIECE_BYTES", CHUNK // 4)
    async with AsyncExitStack() as stack:
        made: list[TransferPeer] = []

        async def open_some(count: int) -> list[TransferPeer]:
            for _ in range(count):
                link = await open_link(settings)
                stack.push_async_callback(link.close)
                made.append(await stack.enter_async_context(TransferPeer(f"worker-{len(made)}", link, executor)))
            return made[-count:]

        yield open_some
