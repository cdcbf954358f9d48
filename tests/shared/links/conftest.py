"""Two links of one transport within this process, connected both ways."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest

from livescale.shared.links import ucx_peer
from livescale.shared.links.contract import Link, Peer
from livescale.shared.links.open import open_link
from livescale.shared.runtime.settings import LinkSettings


@dataclass
class Pair:
    """Two linked ends: `to_b` is a's peer b, `to_a` is b's peer a."""

    a: Link
    b: Link
    to_a: Peer
    to_b: Peer


@pytest.fixture(params=["ucx", "copied", "socket"])
def settings(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LinkSettings:
    """`copied`: UCX, and even the smallest message is copied from where it lies at the sender."""
    if request.param == "copied":
        monkeypatch.setattr(ucx_peer, "LEAST_COPIED", 1)
        return LinkSettings(transport="ucx")
    return LinkSettings(transport=request.param)


async def connected(settings: LinkSettings) -> Pair:
    a, b = await open_link(settings), await open_link(settings)
    to_b = await a.connect(b.address, timeout=60)
    to_a = await b.connect(a.address, timeout=60)
    return Pair(a=a, b=b, to_a=to_a, to_b=to_b)


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - the other process, or UCX, has something to do
            await asyncio.sleep(0.01)


@pytest.fixture
async def pair(settings: LinkSettings) -> AsyncIterator[Pair]:
    pair = await connected(settings)
    yield pair
    await pair.a.close()
    await pair.b.close()
