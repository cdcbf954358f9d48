"""Adapters that rows of a step use and that are missing: the step waits for them, on the torch thread."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from livescale.services.worker.engine.contract import AdapterData, AdapterMissing, FetchAdapter
from livescale.services.worker.scheduling.batch import ScheduledChunk
from livescale.shared.links.contract import View
from livescale.shared.messages.parameters import Manifest

FETCH_SECONDS = 40.0


class AdapterEngine(Protocol):
    """An engine, as far as adapters are brought to it."""

    @property
    def adapters(self) -> Mapping[str, int]: ...

    def add_adapter(self, manifest: Manifest, buffer: View) -> None: ...


E = TypeVar("E", bound=AdapterEngine)


class AdapterFetches:
    """Fetches the adapters that rows of `chunks` use and that are missing. Make it on the event loop and call it on the
    torch thread, which waits: so steps keep their order."""

    def __init__(self, chunks: Sequence[ScheduledChunk], fetch: FetchAdapter | None) -> None:
        self._wanted = {chunk.adapter for chunk in chunks if chunk.adapter is not None}
        self._fetch = fetch
        self._loop = asyncio.get_running_loop()

    def __call__(self, engine: E) -> E:
        """Return the engine once it has them. Raises AdapterMissing where one does not come."""
        missing = self._wanted - engine.adapters.keys() if self._wanted else set()
        for version in sorted(missing):
            if self._fetch is None:
                raise AdapterMissing(f"adapter {version} was not added")
            try:
                coming = asyncio.run_coroutine_threadsafe(_fetched(self._fetch, version), self._loop)
                adapter = coming.result(FETCH_SECONDS)
                engine.add_adapter(adapter.manifest, adapter.data)
            except Exception as error:
                raise AdapterMissing(f"adapter {version} did not come: {error}") from error
        return engine


async def _fetched(fetch: FetchAdapter, version: str) -> AdapterData:
    return await fetch(version)
