"""Several coroutines that succeed or fail as one."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


async def together(*work: Coroutine[None, None, T]) -> list[T]:
    """Run all coroutines to their ends, and return what they returned, in their order. When one fails the others are
    cancelled, and its error alone is raised."""
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one) for one in work]
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    return [task.result() for task in running]
