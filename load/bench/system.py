"""A whole system for a bench: its log, its failures in one line, and another one in its place."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import click

from livescale.load.kept import KEPT, open_log
from livescale.services.supervisor.checks import BadSettings
from livescale.services.supervisor.processes import ChildFailed, Echo
from livescale.services.supervisor.stack import StackFailed
from livescale.shared.bus.contract import BusError

T = TypeVar("T")

LOG = KEPT / "bench.log"


@contextmanager
def logged(log: Path = LOG) -> Iterator[Echo]:
    """What a stack's processes print goes to a file; what goes wrong becomes one line with a remedy."""
    with open_log(log) as echo:
        try:
            yield echo
        except (BadSettings, ChildFailed, StackFailed, BusError) as error:
            raise click.ClickException(f"{error}\nThe processes' logs are in {log}") from None


class Renewable(Generic[T]):
    """What is there `now`, until `renew` ends it and has another in its place."""

    now: T

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T]], cleanup: AsyncExitStack) -> None:
        self._make = make
        self._cleanup = cleanup

    async def renew(self) -> None:
        await self._cleanup.aclose()
        self.now = await self._cleanup.enter_async_context(self._make())


@asynccontextmanager
async def renewable(make: Callable[[], AbstractAsyncContextManager[T]]) -> AsyncIterator[Renewable[T]]:
    """It is made on entry, and ends with the block of code."""
    async with AsyncExitStack() as cleanup:
        made = Renewable(make, cleanup)
        await made.renew()
        yield made
