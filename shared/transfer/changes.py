"""Waiting for what another task changes."""

import asyncio


class Changes:
    """Everybody who waits goes on at the next change, and looks again whether it was the one that is waited for."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def tell(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self) -> None:
        await self._next.wait()
