"""Nodes of a transfer within one process: a link each, over a real transport."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from shared.links.contract import Link
from shared.links.open import open_link
from shared.messages.scaling import Node
from shared.settings import LinkSettings


@dataclass
class Place:
    """One end of a transfer: its link, and how others name it."""

    link: Link
    node: Node


OpenPlaces = Callable[[int], Awaitable[list[Place]]]


@pytest.fixture(params=["ucx", "socket"])
async def open_places(request: pytest.FixtureRequest) -> AsyncIterator[OpenPlaces]:
    async with AsyncExitStack() as stack:

        async def open_some(count: int) -> list[Place]:
            places = []
            for index in range(count):
                link = await open_link(LinkSettings(transport=request.param))
                stack.push_async_callback(link.close)
                places.append(Place(link, Node(id=f"worker-{index}", place="worker", address=link.address)))
            return places

        yield open_some


@pytest.fixture
def executor() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool
