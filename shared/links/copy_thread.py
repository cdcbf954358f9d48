"""A thread that copies memory for an event loop.

It does what an executor of one thread does, at a fifth of the calls in the loop's thread: a copy leaves nothing of the
program in the cache, so there each call costs many times what it does elsewhere.
"""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

Job = tuple[Callable[[], bool], asyncio.Future[bool]]


class CopyThread:
    """Makes copies one after the other, in the order in which they were begun; the first one starts the thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: Thread | None = None

    def begin(self, copy: Callable[[], bool]) -> asyncio.Future[bool]:
        """Have the thread call `copy`. Returns a future for what comes of it; to cancel that does not end the call."""
        if self._thread is None:
            self._thread = Thread(target=self._work, name="copies", daemon=True)  # a link may be left open at exit
            self._thread.start()
        done: asyncio.Future[bool] = self._loop.create_future()
        self._jobs.put((copy, done))
        return done

    async def settle(self) -> None:
        """Return once all that was begun before has ended, cancelled or not."""
        await asyncio.wait((self.begin(bool),))

    def close(self) -> None:
        """Wait for the thread to end what was begun."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while self._do(self._jobs.get()):
            pass

    def _do(self, job: Job | None) -> bool:
        """Returns whether there is more to do. What it held of a job is let go with it: buffers are large."""
        if job is None:
            return False
        copy, done = job
        try:
            copied = copy()
        except Exception as error:  # noqa: BLE001 whatever it is, who waits gets it from the future
            self._loop.call_soon_threadsafe(_fail, done, error)
        else:
            self._loop.call_soon_threadsafe(_end, done, copied)
        return True


def _end(done: asyncio.Future[bool], copied: bool) -> None:
    if not done.done():
        done.set_result(copied)


def _fail(done: asyncio.Future[bool], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
