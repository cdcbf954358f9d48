"""The adapters of a rank that is led: it brings and forgets those that the rank which leads says."""

import asyncio

from livescale.services.worker.engine.contract import AdapterUnavailable, Runner
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.ranks import RankAdapter
from livescale.shared.runtime.waiting import Changes

WAIT_SECONDS = 30.0  # for an adapter, and the steps before it
UNAVAILABLE = 503


class RankAdapters:
    """Adapters in the engine of a rank, in the order of the steps that the leading rank tells."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._wanted: set[str] = set()
        self._ran = 0
        self._progress = Changes()

    def ran(self, step: int) -> None:
        """Note that all steps up to this one were run."""
        self._ran = step
        self._progress.tell()

    async def bring(self, ask: RankAdapter) -> None:
        """Return once an adapter is in the engine. Raises Refusal 503 where it does not come."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while self._ran < ask.after:
                    await self._progress.wait()
                self._wanted.add(ask.version)
                if ask.version not in self._runner.adapters:
                    await self._fetch(ask.version)
        except TimeoutError:
            raise Refusal(UNAVAILABLE, f"adapter {ask.version} did not come within {WAIT_SECONDS:g} s") from None

    async def forget(self, version: str) -> None:
        """Forget an adapter, also one that is on its way."""
        self._wanted.discard(version)
        await self._runner.remove_adapter(version)

    async def _fetch(self, version: str) -> None:
        if self._runner.fetch_adapter is None:
            raise Refusal(UNAVAILABLE, f"adapter {version}: this worker fetches none")
        try:
            adapter = await self._runner.fetch_adapter(version)
            if version in self._wanted:
                await self._runner.add_adapter(adapter)
        except (AdapterUnavailable, ValueError, RuntimeError) as error:
            raise Refusal(UNAVAILABLE, f"adapter {version}: {error}") from error
        if version not in self._wanted:
            raise Refusal(UNAVAILABLE, f"adapter {version} is not wanted any more")
