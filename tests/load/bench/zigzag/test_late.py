"""Bursts that meet an instance while it loads: which of their requests are late."""

from random import Random

from livescale.load.bench.zigzag.late import COMING, LAYERS, LOADS, WAITING, burst, late_share, needs
from livescale.services.worker.live.policy import OFF, ZIGZAG


def test_a_burst_begins_with_those_that_wait_and_goes_on_in_order() -> None:
    tasks = burst(Random(1))
    arrivals = [task.arrival for task in tasks]
    assert arrivals == sorted(arrivals)
    assert arrivals.count(0.0) == WAITING
    assert len({task.id for task in tasks}) == len(tasks) == WAITING + COMING
    assert sorted(tasks, key=lambda task: task.id) == tasks


def test_serving_while_it_loads_makes_fewer_late_and_the_slower_the_link_the_more_are() -> None:
    def shares(load: float) -> tuple[float, float]:
        ready = [load * (layer + 1) for layer in range(LAYERS)]
        return late_share(ready, ZIGZAG), late_share(ready, OFF)

    fast, slow = shares(LOADS[0]), shares(LOADS[-1])
    for live, stopped in (fast, slow):
        assert 0.0 <= live <= stopped <= 1.0
    assert fast[1] < slow[1]
    assert slow[0] < slow[1]


def test_there_is_a_case_for_each_speed_and_need_chooses_live_where_links_are_slow() -> None:
    cases = [record.case for record in needs("zigzag")]
    assert len(cases) == len(LOADS)
    chosen = [case.rpartition(" ")[2] for case in cases]
    assert chosen == sorted(chosen, reverse=True)  # stop, then live
    assert {"stop", "live"} == set(chosen)
