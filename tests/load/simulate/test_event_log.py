"""The log of a simulation: what was sent on which subject, and when; and where two logs in files part."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from livescale.load.simulate.event_log import Difference, EventLog, LogFile, LoggedEvent, find_difference
from livescale.shared.bus.codec import encode
from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.messages.requests import Cancel
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import CANCEL, LEASE


def change(id: str) -> LeaseChanged:
    return LeaseChanged(service="worker", id=id, epoch=1, state="dead", reason="silent", at=0.0)


def heard(*ids: str) -> EventLog:
    async def main() -> EventLog:
        broker = LocalBroker(delays=lambda subject: (0.5,))
        log, bus = EventLog(broker), broker.connect()
        for id in ids:
            bus.publish(LEASE, change(id), id=id)
            bus.publish(CANCEL, Cancel(request_id=id))
            await asyncio.sleep(1.0)
        await bus.close()
        return log

    return virtual_time.run(main())


def test_what_is_wanted_is_kept_with_the_moment_it_was_sent() -> None:
    log = heard("a", "b")
    assert log.events == [
        LoggedEvent(0.0, "evt.lease.a", encode(change("a"), json=True)),
        LoggedEvent(1.0, "evt.lease.b", encode(change("b"), json=True)),
    ]
    assert log.of("evt.lease.b") == log.events[1:]
    assert log.of("tok") == []


def test_the_digest_is_of_everything() -> None:
    digests = [heard(*ids).digest() for ids in (("a", "b"), ("a", "b"), ("b", "a"), ("a",))]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_a_message_that_is_lost_is_logged_and_one_that_the_sender_could_not_send_is_not() -> None:
    async def main() -> None:
        broker = LocalBroker(lose=lambda subject: True)
        log, bus = EventLog(broker), broker.connect()
        bus.publish(LEASE, change("a"), id="a")
        broker.down()
        bus.publish(LEASE, change("b"), id="b")
        assert [event.subject for event in log.events] == ["evt.lease.a"]
        await bus.close()

    virtual_time.run(main())


def written(path: Path, *ids: str) -> Path:
    with path.open("wb") as file:
        log = LogFile(file)
        for number, id in enumerate(ids):
            log.write(LoggedEvent(number / 8, f"req.{id}", encode(Cancel(request_id=id), json=bool(number % 2))))
    return path


def test_a_line_tells_the_message_in_whatever_form_it_was_sent(tmp_path: Path) -> None:
    lines = [msgspec.json.decode(line) for line in written(tmp_path / "log", "a", "b").read_bytes().splitlines()]
    assert [(line["at"], line["subject"]) for line in lines] == [(0.0, "req.a"), (0.125, "req.b")]
    assert [line["message"]["request_id"] for line in lines] == ["a", "b"]


@pytest.mark.parametrize(("ids", "number"), [("abc", None), ("abd", 3), ("xbc", 1), ("ab", 3), ("abcd", 4)])
def test_the_first_event_that_differs_is_found(tmp_path: Path, ids: str, number: int | None) -> None:
    found = find_difference(written(tmp_path / "one", *"abc"), written(tmp_path / "other", *ids))
    assert (found and found.number) == number
    if ids == "ab":
        assert isinstance(found, Difference)
        assert found.one is not None
        assert found.other is None
