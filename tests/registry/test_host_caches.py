"""Which copies hosts keep where they are not pooled: those of late, or all."""

import pytest
from msgspec.structs import replace

from livescale.services.registry.holdings import Holdings
from livescale.services.registry.host_caches import HostCaches, plan_everywhere, plan_recent
from livescale.services.registry.placement import CopyDemand, CopyOrder, HostCopy, HostMemory, NoRoom, why_no_room
from livescale.shared.messages.membership import Member, ServiceName
from livescale.shared.runtime.settings import HostCacheName
from tests.control.fakes import whole
from tests.registry import reports

TTL = 30.0


def copy(model: str = "m", size: int = 10, *, is_whole: bool = True, sending: bool = False) -> HostCopy:
    return HostCopy(model, "v1" if is_whole else "", size, is_whole, sending)


def host(id: str, *copies: HostCopy, limit: int = 100) -> HostMemory:
    return HostMemory(id, limit, copies)


def demand(model: str = "m", *, needed: bool = False, coming: str | None = None) -> CopyDemand:
    return CopyDemand(model, "v1", 10, needed, coming)


def told(orders: list[CopyOrder]) -> list[tuple[str, str, str]]:
    """The orders without versions and reasons."""
    assert not [one for one in orders if isinstance(one, NoRoom)]
    return [(type(one).__name__[:4], one.host, one.model) for one in orders if not isinstance(one, NoRoom)]


def recent(hosts: list[HostMemory], demands: list[CopyDemand], **idle: float) -> list[tuple[str, str, str]]:
    """The orders by ttl, where copies of `m` on these hosts were not used for so long."""
    return told(plan_recent(hosts, demands, {(id, "m", "v1"): seconds for id, seconds in idle.items()}, TTL))


def test_by_ttl_copies_stay_for_their_time_however_many_there_are() -> None:
    hosts = [host("a", copy()), host("b", copy()), host("c", copy())]
    assert recent(hosts, [demand()], a=0.0, b=29.9, c=30.0) == [("Free", "c", "m")]
    assert recent(hosts, [demand()], a=31.0, b=32.0, c=33.0) == [("Free", id, "m") for id in "abc"]


def test_by_ttl_the_copy_that_was_used_last_stays_where_no_instance_serves() -> None:
    hosts = [host("a", copy()), host("b", copy()), host("c", copy())]
    assert recent(hosts, [demand(needed=True)], a=32.0, b=31.0, c=33.0) == [("Free", "a", "m"), ("Free", "c", "m")]


def test_by_ttl_a_copy_that_is_sent_or_read_stays() -> None:
    hosts = [host("a", copy(sending=True)), host("b", copy(is_whole=False))]
    assert recent(hosts, [demand()], a=99.0, b=99.0) == []


def test_by_ttl_no_copy_is_made_but_of_what_no_instance_serves() -> None:
    assert recent([host("a"), host("b")], [demand("m"), demand("x", needed=True)]) == [("Make", "a", "x")]


def test_by_ttl_what_instances_serve_makes_room_for_what_they_do_not() -> None:
    hosts = [host("a", copy(), limit=15)]
    assert recent(hosts, [demand("m"), demand("x", needed=True)], a=1.0) == [("Free", "a", "m")]


def test_what_is_not_demanded_any_more_is_released_at_once() -> None:
    assert recent([host("a", copy())], [], a=0.0) == [("Free", "a", "m")]
    assert told(plan_everywhere([host("a", copy())], [])) == [("Free", "a", "m")]


def test_everywhere_one_host_after_the_other_gets_a_copy() -> None:
    first, rest = host("a", copy()), [host("b"), host("c")]
    assert told(plan_everywhere([first, *rest], [demand()])) == [("Make", "b", "m")]
    assert told(plan_everywhere([first, *rest], [demand(coming="b")])) == []
    assert told(plan_everywhere([first, host("b", copy()), host("c")], [demand()])) == [("Make", "c", "m")]
    assert told(plan_everywhere([host(id, copy()) for id in "abc"], [demand()])) == []


def test_everywhere_the_first_copy_is_that_of_the_least_filled_host() -> None:
    hosts = [host("a", copy("x")), host("b")]
    assert told(plan_everywhere(hosts, [demand("x"), demand("m", needed=True)])) == [
        ("Make", "b", "m"),
        ("Make", "b", "x"),
    ]


def test_everywhere_a_full_host_is_passed_over() -> None:
    hosts = [host("a", copy()), host("b", limit=9), host("c", copy(is_whole=True), limit=10)]
    assert told(plan_everywhere(hosts, [demand()])) == []


@pytest.mark.parametrize("policy", ["ttl", "all"])
def test_what_another_host_has_too_makes_room_for_what_none_has(policy: HostCacheName) -> None:
    caches, hosts = HostCaches(policy, TTL), [host(id, copy(), limit=15) for id in "ab"]
    demands = [demand(needed=True), demand("x", needed=True)]
    assert why_no_room(hosts, demands[:1], "x", 10) is None
    assert told(caches.plan(hosts, demands, 0.0)) == [("Free", "a", "m")]
    hosts = [host("a", limit=15), hosts[1]]
    assert told(caches.plan(hosts, demands, 0.0)) == [("Make", "a", "x")]
    hosts = [host("a", copy("x"), limit=15), hosts[1]]
    assert caches.plan(hosts, demands, 0.0) == []
    assert why_no_room(hosts, demands, "y", 10) is not None


def test_of_two_copies_no_more_than_one_makes_room() -> None:
    hosts = [host(id, copy(), limit=15) for id in "ab"]
    demands = [demand(needed=True), demand("x", needed=True), demand("y", needed=True)]
    assert told(HostCaches("all").plan(hosts, demands, 0.0)) == [("Free", "a", "m")]


def member(id: str, machine: str, place: str | None = None) -> Member:
    service: ServiceName = "host" if id.startswith("h") else "worker"
    return Member(id=id, service=service, pid=1, epoch=1, lease="alive", host=machine, place=place)


@pytest.mark.parametrize("shard", ["", ".1of2"])
@pytest.mark.parametrize("places", [("h0", "h0/1"), (None, None)])
def test_a_copy_is_in_use_while_a_worker_of_its_machine_holds_the_version(
    places: tuple[str | None, ...], shard: str
) -> None:
    caches, holds = HostCaches("ttl", TTL), Holdings()
    members = [member("h-0", "box", places[0]), member("w-0", "box", places[1]), member("h-1", "other", "h1")]
    for id in ("h-0", "h-1"):
        holds.on_host(reports.host(id, whole("m", "v-m")))
    holds.on_worker(replace(reports.worker("w-0", whole("m", f"v-m{shard}")), version="v-m"))
    demands = [CopyDemand("m", "v-m", 10, False)]
    for now in (0.0, 20.0, 29.0):
        caches.look(holds, members, now)
        assert caches.plan(holds.memories(), demands, now) == []
    caches.look(holds, members, 30.0)
    assert told(caches.plan(holds.memories(), demands, 30.0)) == [("Free", "h-1", "m")]
    holds.gone("w-0")
    caches.look(holds, members, 40.0)
    assert ("Free", "h-0", "m") not in told(caches.plan(holds.memories(), demands, 59.0))
    assert ("Free", "h-0", "m") in told(caches.plan(holds.memories(), demands, 60.0))


@pytest.mark.parametrize(("policy", "kept"), [("pool", 1), ("ttl", 2), ("all", 2)])
def test_a_second_copy_stays_by_policy(policy: HostCacheName, kept: int) -> None:
    hosts = [host("a", copy()), host("b", copy())]
    assert len(HostCaches(policy).plan(hosts, [demand()], 0.0)) == 2 - kept
