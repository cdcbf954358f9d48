"""Adapters that were replaced or removed are known for a while, also to the next registry."""

import asyncio

import pytest

from livescale.services.registry.adapter_versions import KEPT_SECONDS, AdapterVersions
from livescale.services.registry.saved import SavedState
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import AdapterContent
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.local_bus import LocalBroker
from tests.clocks import LoopClock
from tests.control.fakes import manifest


def content(path: str) -> AdapterContent:
    return AdapterContent(spec=ModelSpec(name="a", path=path, base="m"), manifest=manifest(path))


OLD, NEW = content("old"), content("new")


def versions() -> AdapterVersions:
    return AdapterVersions(SavedState(LocalBroker(LoopClock(epoch=0.0)).connect().kv))


def test_an_adapter_is_known_for_a_while_after_it_was_replaced() -> None:
    known = versions()
    known.note([OLD], 10.0)
    known.note([NEW], 20.0)
    assert known.find("old") == OLD
    assert known.find("new") == NEW
    known.note([NEW], 10.0 + KEPT_SECONDS)
    assert known.find("old") == OLD
    known.note([NEW], 10.1 + KEPT_SECONDS)
    with pytest.raises(Refusal, match="adapter old is not registered, and was not in the last 600 s") as caught:
        known.find("old")
    assert caught.value.code == 404
    assert known.find("new") == NEW


def test_the_next_registry_knows_it_for_as_long_again() -> None:
    async def main() -> None:
        bus = LocalBroker(LoopClock(epoch=0.0)).connect()
        saved = SavedState(bus.kv)
        running = asyncio.create_task(saved.run())
        known = AdapterVersions(saved)
        known.note([OLD], 0.0)
        known.note([NEW], 1.0 + KEPT_SECONDS)
        known.note([], 2.0 + KEPT_SECONDS)
        await asyncio.sleep(0.1)
        after = versions()
        after.restore(await SavedState(bus.kv).load_adapters(), 0.0)
        assert after.find("new") == NEW
        with pytest.raises(Refusal):
            after.find("old")
        running.cancel()

    virtual_time.run(main())
