"""Futures that share a timer fail each at its own time."""

import asyncio

from livescale.shared.simulation.overdue import OverdueFutures
from livescale.shared.simulation.virtual_clock import machine_time
from livescale.shared.simulation.virtual_time import run


def test_each_fails_at_its_own_time_unless_it_is_done_or_taken_out() -> None:
    async def main() -> dict[str, float]:
        loop, overdue, failed = asyncio.get_running_loop(), OverdueFutures(), dict[str, float]()
        timeouts = {"late": 9.0, "early": 2.0, "as early": 2.0, "done": 3.0, "taken out": 4.0, "last": 12.0}
        futures = {name: loop.create_future() for name in timeouts}

        def note(name: str, future: asyncio.Future[int]) -> None:
            if not future.cancelled() and isinstance(future.exception(), TimeoutError):
                failed[name] = machine_time()
            overdue.discard(future)

        for name, future in futures.items():
            overdue.add(future, timeouts[name])
            future.add_done_callback(lambda future, name=name: note(name, future))  # type: ignore[misc]
        futures["done"].set_result(1)
        overdue.discard(futures["taken out"])
        await asyncio.wait([futures["last"]])
        await asyncio.sleep(0)
        return failed

    assert run(main()) == {"early": 2.0, "as early": 2.0, "late": 9.0, "last": 12.0}


def test_no_timer_is_left_once_nothing_is_waited_for() -> None:
    async def main() -> float:
        overdue, future = OverdueFutures(), asyncio.get_running_loop().create_future()
        overdue.add(future, 1000.0)
        overdue.discard(future)
        await asyncio.sleep(1.0)
        return machine_time()

    assert run(main(), limit_seconds=10.0) == 1.0
