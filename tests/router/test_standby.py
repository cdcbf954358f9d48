"""Which router is in office, and what one does that may have lost the office."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from livescale.services.router.standby import AWAY_SECONDS, DOUBT_SECONDS, JoinOrder, Tenure, first_in_line
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import LeaseState, Member, ServiceName
from livescale.shared.messages.registry import Snapshot
from livescale.shared.simulation.virtual_time import run

OWN = (5, "me")


def member(id: str, epoch: int, lease: LeaseState = "alive", service: ServiceName = "router") -> Member:
    return Member(service=service, id=id, pid=1, host="here", epoch=epoch, lease=lease)


@pytest.mark.parametrize(
    ("members", "office"),
    [
        ([member("me", 5)], True),
        ([member("me", 5), member("later", 6)], True),
        ([member("first", 3), member("me", 5)], False),
        ([member("first", 3, "suspect"), member("me", 5)], False),
        ([member("first", 3, "dead"), member("me", 5)], True),
        ([member("worker-1", 2, service="worker"), member("me", 5)], True),
        # What the registry does not know, or knows under another epoch, is not in office.
        ([], False),
        ([member("me", 4)], False),
    ],
)
def test_the_living_router_that_joined_first_is_active(members: list[Member], office: bool) -> None:
    assert (first_in_line(members) == OWN) is office


class SleepyClock:
    """A clock whose time `away` is set by the test."""

    away = 0.0

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    wall = now


class ToldStandby:
    """The registry's answers, one after the other; each takes `seconds`."""

    def __init__(self, seconds: float, *answers: list[Member] | None) -> None:
        self._seconds = seconds
        self._answers = list(answers)

    async def look(self) -> tuple[JoinOrder, Snapshot | None]:
        await asyncio.sleep(self._seconds)
        members = self._answers.pop(0)
        return OWN, None if members is None else Snapshot(members=members, workers=[], models=[])

    async def pause(self) -> None:
        await asyncio.sleep(0.5)


class InOffice:
    """A tenure of the active role, with the calls that it made."""

    def __init__(self, standby: ToldStandby) -> None:
        self.clock = SleepyClock()
        self.told: list[str] = []
        self.calls = asyncio.TaskGroup()
        self.tenure = Tenure(
            self.clock,
            standby,  # type: ignore[arg-type]
            self.calls,
            lambda: self.told.append("away"),
            lambda: self.told.append("confirmed"),
        )


def held(standby: ToldStandby, act: Callable[[InOffice], Awaitable[None]]) -> list[str]:
    """Return the calls that the tenure made while the test acted."""

    async def main() -> list[str]:
        office = InOffice(standby)
        async with office.calls:
            await act(office)
        return office.told

    return run(main())


def test_a_short_sleep_is_no_reason_to_doubt() -> None:
    async def act(office: InOffice) -> None:
        office.clock.away = AWAY_SECONDS / 2
        assert office.tenure.is_sure()

    assert held(ToldStandby(0.1), act) == []


def test_a_term_that_is_over_takes_nothing_and_asks_nobody() -> None:
    async def act(office: InOffice) -> None:
        office.tenure.end()
        office.clock.away = 2 * AWAY_SECONDS
        began = asyncio.get_running_loop().time()
        with pytest.raises(Refusal, match="may not be the active one"):
            await office.tenure.be_sure()
        assert asyncio.get_running_loop().time() == began

    assert held(ToldStandby(0.1), act) == ["away"]


def test_after_a_long_sleep_nothing_is_sure_before_the_registry_has_confirmed_it() -> None:
    async def act(office: InOffice) -> None:
        office.clock.away = 2 * AWAY_SECONDS
        assert not office.tenure.is_sure()
        await office.tenure.be_sure()
        assert office.tenure.is_sure()

    assert held(ToldStandby(0.1, [member("me", 5), member("later", 6)]), act) == ["away", "confirmed"]


def test_a_request_does_not_wait_for_long_while_the_office_is_in_doubt() -> None:
    async def act(office: InOffice) -> None:
        office.tenure.doubt("asked by a test")
        office.tenure.doubt("asked again, which starts no second question")
        with pytest.raises(Refusal, match="may not be the active one"):
            await office.tenure.be_sure()

    # The registry does not answer at first, and then does not know this router yet.
    assert held(ToldStandby(2 * DOUBT_SECONDS, None, [], [member("me", 5)]), act) == ["confirmed"]


def test_another_router_in_office_ends_the_tenure_and_nothing_is_sure_any_more() -> None:
    async def act(office: InOffice) -> None:
        office.tenure.doubt("asked by a test")
        await office.tenure.over.wait()
        assert not office.tenure.is_sure()
        office.tenure.doubt("which is no question any more")

    assert held(ToldStandby(0.1, [member("first", 3), member("me", 5)]), act) == []
