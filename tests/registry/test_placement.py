"""Which host keeps what: by tables, and whatever hosts and models there are."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from livescale.services.registry.placement import (
    CopyDemand,
    FreeCopy,
    HostCopy,
    HostMemory,
    MakeCopy,
    NoRoom,
    plan_copies,
    why_no_room,
)

ROUNDS = 60


def copy(model: str, size: int, version: str = "v1", *, whole: bool = True, sending: bool = False) -> HostCopy:
    return HostCopy(model, version, size, whole, sending)


def host(id: str, limit: int, *copies: HostCopy) -> HostMemory:
    return HostMemory(id, limit, copies)


def needed(model: str, size: int, version: str = "v1", coming: str | None = None) -> CopyDemand:
    return CopyDemand(model, version, size, True, coming)


def served(model: str, size: int, version: str = "v1") -> CopyDemand:
    return CopyDemand(model, version, size, False)


def told(hosts: list[HostMemory], demands: list[CopyDemand]) -> list[tuple[str, ...]]:
    """Return the orders without their reasons."""
    return [
        ("no room", one.model)
        if isinstance(one, NoRoom)
        else (type(one).__name__[:4], one.host, one.model, one.version)
        for one in plan_copies(hosts, demands)
    ]


def test_models_go_to_the_least_filled_host_that_has_room_large_ones_first() -> None:
    hosts = [host("a", 100, copy("x", 10)), host("b", 100), host("c", 25)]
    demands = [needed("x", 10), needed("small", 20), needed("large", 60)]
    assert told(hosts, demands) == [("Make", "b", "large", "v1"), ("Make", "c", "small", "v1")]


def test_what_is_under_way_is_counted_and_not_ordered_again() -> None:
    hosts = [host("a", 100), host("b", 100, copy("y", 30, whole=False))]
    demands = [needed("x", 40, coming="a"), needed("y", 30), needed("z", 50)]
    assert told(hosts, demands) == [("Make", "b", "z", "v1")]


def test_an_old_version_and_a_removed_model_are_released_but_not_while_they_are_sent() -> None:
    hosts = [host("a", 100, copy("m", 10, "v0"), copy("m", 10, "v1"), copy("gone", 10), copy("old", 10, sending=True))]
    assert told(hosts, [needed("m", 10)]) == [("Free", "a", "m", "v0"), ("Free", "a", "gone", "v1")]


def test_nothing_of_a_model_is_released_while_a_version_of_it_is_being_read() -> None:
    hosts = [host("a", 100, copy("m", 10, "v1"), copy("m", 12, "", whole=False), copy("m", 9, "v0"))]
    assert told(hosts, [needed("m", 10), needed("m", 12, "", coming="a")]) == []


def test_a_version_that_is_read_already_is_asked_for_where_it_is() -> None:
    hosts = [host("a", 50), host("b", 20, copy("m", 12, "", whole=False))]
    assert told(hosts, [needed("m", 12, "")]) == [("Make", "b", "m", "")]
    current = [host("a", 50, copy("m", 10)), host("b", 20)]
    assert told(current, [served("m", 10), needed("m", 12, "")]) == [("Make", "b", "m", "")]


def test_a_copy_gives_way_once_it_is_known_to_be_another_version_than_is_wanted() -> None:
    hosts, wanted = [host("a", 100, copy("m", 60))], needed("m", 80, "")
    assert told(hosts, [wanted]) == [("Make", "a", "m", "")]
    assert told(hosts, [replace(wanted, other_than=frozenset({"v1"}))]) == [("Free", "a", "m", "v1")]


def test_the_copy_in_the_emptier_cache_stays() -> None:
    hosts = [host("a", 100, copy("m", 10), copy("n", 20)), host("b", 100, copy("m", 10))]
    assert told(hosts, [needed("m", 10), needed("n", 20)]) == [("Free", "a", "m", "v1")]


def test_where_memory_is_short_the_copy_of_a_model_that_is_served_gives_way() -> None:
    hosts = [host("a", 30, copy("served", 20), copy("only", 10))]
    demands = [served("served", 20), needed("only", 10), needed("new", 15)]
    assert told(hosts, demands) == [("Free", "a", "served", "v1")]
    [order] = plan_copies(hosts, demands)
    assert order.reason == "new has to be kept in its place, and instances serve served"
    hosts = [host("a", 30, copy("only", 10))]
    assert told(hosts, demands) == [("Make", "a", "new", "v1")]
    hosts = [host("a", 30, copy("only", 10), copy("new", 15))]
    assert told(hosts, demands) == []


def test_as_little_as_can_be_gives_way_and_nothing_that_is_being_sent() -> None:
    hosts = [
        host("a", 30, copy("p", 20), copy("q", 10)),
        host("b", 30, copy("r", 12, sending=True), copy("s", 18)),
    ]
    demands = [served("p", 20), served("q", 10), served("r", 12), served("s", 18), needed("new", 11)]
    assert told(hosts, demands) == [("Free", "b", "s", "v1")]


def test_a_copy_that_was_released_comes_back_when_there_is_room_and_first_of_all_when_it_is_needed() -> None:
    hosts = [host("a", 30, copy("new", 15))]
    assert told(hosts, [served("m", 20), needed("new", 15)]) == []
    assert told([host("a", 40, copy("new", 15))], [served("m", 20), needed("new", 15)]) == [("Make", "a", "m", "v1")]
    assert told(hosts, [needed("m", 20), served("new", 15)]) == [("Free", "a", "new", "v1")]


def test_what_fits_nowhere_is_named_with_the_bytes_the_hosts_and_the_remedy() -> None:
    mib = 1024**2
    hosts = [host("a", 30 * mib, copy("only", 20 * mib), copy("served", 5 * mib)), host("b", 8 * mib)]
    demands = [needed("only", 20 * mib), served("served", 5 * mib)]
    assert why_no_room(hosts, demands, "big", 10 * mib) is None
    why = why_no_room(hosts, demands, "big", 11 * mib)
    assert why is not None
    for said in ("'big'", "11.0 MiB", "a has 10.0 MiB of 30.0 MiB", "b has 8.0 MiB of 8.0 MiB", "--cache-bytes"):
        assert said in why
    assert told(hosts, [*demands, needed("big", 11 * mib)]) == [("no room", "big")]
    assert "no host is alive" in str(why_no_room([], [], "m", 1))


def test_a_host_that_joins_gets_its_share() -> None:
    hosts = [host("a", 100, copy("p", 10), copy("q", 10), copy("r", 20)), host("b", 100)]
    demands = [needed("p", 10), needed("q", 10), needed("r", 20)]
    assert told(hosts, demands) == [("Make", "b", "r", "v1")]
    assert told([hosts[0], host("b", 100, copy("r", 20))], demands) == [("Free", "a", "r", "v1")]


SIZES = st.integers(1, 40)


@st.composite
def pools(draw: st.DrawFn) -> tuple[list[HostMemory], list[CopyDemand]]:
    limits = draw(st.lists(st.integers(10, 100), min_size=1, max_size=5))
    sizes = draw(st.lists(SIZES, max_size=8))
    demands = [CopyDemand(f"m{i}", "v1", size, draw(st.booleans())) for i, size in enumerate(sizes)]
    hosts = []
    for number, limit in enumerate(limits):
        copies: list[HostCopy] = []
        for demand in draw(st.lists(st.sampled_from(demands), unique=True, max_size=4)) if demands else []:
            version = draw(st.sampled_from(["v0", "v1"]))
            if sum(one.size_bytes for one in copies) + demand.size_bytes <= limit:
                copies.append(HostCopy(demand.model, version, demand.size_bytes, True))
        hosts.append(HostMemory(f"h{number}", limit, tuple(copies)))
    return hosts, demands


def carry_out(hosts: list[HostMemory], demands: list[CopyDemand]) -> list[HostMemory]:
    """Carry every order out at once: one round."""
    sizes = {(one.model, one.version): one.size_bytes for one in demands}
    for order in plan_copies(hosts, demands):
        if isinstance(order, NoRoom):
            continue
        [at] = [index for index, one in enumerate(hosts) if one.id == order.host]
        kept = [c for c in hosts[at].copies if (c.model, c.version) != (order.model, order.version)]
        if isinstance(order, MakeCopy):
            kept.append(HostCopy(order.model, order.version, sizes[order.model, order.version], True))
        hosts = [replace(one, copies=tuple(kept)) if index == at else one for index, one in enumerate(hosts)]
    return hosts


def settle(hosts: list[HostMemory], demands: list[CopyDemand]) -> list[HostMemory]:
    for _ in range(ROUNDS):
        assert all(one.used_bytes <= one.limit_bytes for one in hosts), "over its budget"
        after = carry_out(hosts, demands)
        if after == hosts:
            return hosts
        hosts = after
    raise AssertionError(f"it does not settle: {plan_copies(hosts, demands)}")


@given(pools())
def test_it_settles_within_budgets_with_one_copy_of_all_that_can_be_kept(
    pool: tuple[list[HostMemory], list[CopyDemand]],
) -> None:
    hosts = settle(*pool)
    demands = pool[1]
    orders = plan_copies(hosts, demands)
    assert all(isinstance(order, NoRoom) for order in orders)
    kept = [(copy.model, copy.version) for one in hosts for copy in one.copies]
    assert len(set(kept)) == len(kept)
    assert {version for _, version in kept} <= {"v1"}
    for demand in demands:
        if demand.needed and (demand.model, "v1") not in kept:
            assert why_no_room(hosts, demands, demand.model, demand.size_bytes) is not None
        elif (demand.model, "v1") not in kept:
            assert all(one.free_bytes < demand.size_bytes for one in hosts) or orders


@given(pools())
def test_a_needed_copy_is_never_released_unless_another_host_has_it(
    pool: tuple[list[HostMemory], list[CopyDemand]],
) -> None:
    hosts, demands = pool
    for order in plan_copies(hosts, demands):
        if (
            isinstance(order, FreeCopy)
            and order.version == "v1"
            and any(d.model == order.model and d.needed for d in demands)
        ):
            having = [one.id for one in hosts if any((c.model, c.version) == (order.model, "v1") for c in one.copies)]
            assert len(having) > 1


@given(pools())
def test_caches_with_room_differ_by_no_more_than_the_smallest_copy_that_could_move(
    pool: tuple[list[HostMemory], list[CopyDemand]],
) -> None:
    hosts = settle([replace(one, limit_bytes=1_000) for one in pool[0]], pool[1])
    fullest = max(hosts, key=lambda one: (one.used_bytes, one.id))
    emptiest = min(hosts, key=lambda one: (one.used_bytes, one.id))
    gap = fullest.used_bytes - emptiest.used_bytes
    assert all(one.size_bytes >= gap for one in fullest.copies)
