import pytest

from livescale.services.router.standby import first_in_line
from livescale.shared.messages.membership import LeaseState, Member, ServiceName


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
def test_of_living_routers_the_first_that_joined_is_in_office(members: list[Member], office: bool) -> None:
    assert (first_in_line(members) == (5, "me")) is office
