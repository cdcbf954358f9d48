"""What is done about a NATS server that writes nothing."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from livescale.services.supervisor.watches import STORE_LOOK_SECONDS, StoreWatch
from livescale.shared.bus.contract import BusError, CallTimeout, Disconnected
from livescale.shared.messages.message import Message
from livescale.shared.simulation import virtual_time

FULL, ROOM = 0, 1 << 30


@dataclass
class Store:
    """A store that gives these answers in turn; the last one repeats."""

    answers: Sequence[BusError | None]
    asked: int = 0
    restarts: int = 0
    told: list[str] = field(default_factory=list)

    async def put(self, key: str, value: Message) -> None:
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        if answer is not None:
            raise answer

    def restart(self) -> None:
        self.restarts += 1


def watch(store: Store, free: int, monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    async def main() -> None:
        bus: Any = SimpleNamespace(kv=store)
        running = asyncio.create_task(StoreWatch(bus, Path("/store"), store.restart, store.told.append).run())
        await asyncio.sleep(STORE_LOOK_SECONDS * looks + 0.1)
        running.cancel()
        await asyncio.wait([running])

    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    virtual_time.run(main(), limit_seconds=1_000)


SILENT = CallTimeout("JetStream did not answer")


def test_a_full_disk_is_told_once_and_nothing_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store([SILENT])
    watch(store, FULL, monkeypatch, looks=20)
    assert store.restarts == 0
    [line] = store.told
    assert "/store is full" in line


def test_once_there_is_room_the_server_is_started_again_and_once_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store([SILENT, SILENT, Disconnected("the bus is down"), None])
    watch(store, ROOM, monkeypatch, looks=20)
    assert store.restarts == 1


@pytest.mark.parametrize("answers", [[None], [SILENT, None], [Disconnected("down")], [None, SILENT, None]])
def test_a_server_that_writes_or_is_only_slow_or_away_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, answers: list[BusError | None]
) -> None:
    store = Store(answers)
    watch(store, ROOM, monkeypatch, looks=10)
    assert (store.restarts, store.told) == (0, [])
