"""Which process holds which blocks, by what all have reported."""

from msgspec.structs import replace

from livescale.services.registry.placement import MakeCopy
from tests.control.fakes import whole
from tests.registry.reports import host, make, orders, pool_with, read, reading, worker


def test_holders_are_those_who_have_every_block() -> None:
    pool = pool_with("m")
    pool.on_worker(worker("w-1", whole("m", "v-m")))
    pool.on_worker(worker("w-2", reading("m", 0, 1, version="v-m")))
    pool.on_worker(worker("w-3", whole("m", "other version")))
    assert pool.entry("m").copies == ["h-0", "w-1"]


def test_hosts_are_better_sources_than_workers_and_idle_workers_than_busy_ones() -> None:
    pool = pool_with("m")
    pool.on_worker(replace(worker("w-1", whole("m", "v-m")), flows_out=2))
    pool.on_worker(worker("w-2", whole("m", "v-m")))
    assert pool.sources(MakeCopy("h-1", "m", "v-m", "")) == ["h-0", "w-2", "w-1"]
    assert pool.sources(MakeCopy("h-1", "m", "", "")) == []


def test_a_released_copy_is_gone_before_the_host_s_next_report() -> None:
    pool = pool_with("m")
    pool.holds.drop("h-0", "m", "v-m")
    assert pool.without_copy() == ["m"]


def test_reports_are_kept_in_order_and_forgotten_with_their_sender() -> None:
    pool = pool_with("m")
    for id in ("w-2", "w-1"):
        pool.on_worker(worker(id, whole("m", "v-m")))
    assert [report.id for report in pool.holds.workers()] == ["w-1", "w-2"]
    pool.gone("w-1")
    assert [report.id for report in pool.holds.workers()] == ["w-2"]
    assert [report.id for report in pool.holds.hosts()] == ["h-0"]


def test_a_model_whose_last_copy_is_lost_is_named_and_made_again() -> None:
    pool = pool_with("m", "n")
    pool.on_host(host("h-1"))
    pool.on_worker(worker("w-1", whole("m", "v-m")))
    assert pool.without_copy() == []
    pool.gone("h-0")
    assert pool.without_copy() == ["n"]
    made = {order.model: (order, pool.sources(order)) for order in pool.plan(0.0) if isinstance(order, MakeCopy)}
    assert {name: sources for name, (_, sources) in made.items()} == {"n": [], "m": ["w-1"]}
    assert make(pool) == ["h-1", "h-1"]
    assert (pool.without_copy(), orders(pool)) == (["n"], [])
    pool.read(read("n", host="h-1"))
    assert pool.without_copy() == []
