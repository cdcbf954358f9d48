"""What runs say together: medians, SLOs by the reference, the ladder, and the ratios with bars."""

import pytest

from livescale.load.bench.systems.rows import by_system, find_slo, rows_of, summarise
from tests.load.bench.systems.examples import faulty, run


def test_figures_are_medians_of_the_runs() -> None:
    found = summarise([run("a", ttft=seconds, seed=seed) for seed, seconds in enumerate((0.1, 0.9, 0.2))], None)
    assert found.ttft_mean == pytest.approx(0.2)
    assert (found.runs, found.requests, found.attainment) == (3, 30, None)
    assert (found.cached_bytes, found.network_bytes) == (16e9, 3e9)


def test_the_gap_before_the_second_token_stands_apart() -> None:
    found = summarise([run("a", gap=0.02)], None)
    assert found.tbt_p99 == pytest.approx(0.02)
    assert found.second_gap_p99 == pytest.approx(0.06)


def test_slos_are_five_times_the_means_of_what_is_provisioned() -> None:
    name, slo = find_slo(by_system([run("vllm-full"), run("distserve-full", ttft=0.1, gap=0.03)]))
    assert name == "distserve-full"
    assert slo is not None
    assert (slo.ttft, slo.tbt) == (pytest.approx(0.5), pytest.approx(5 * 0.05))
    assert find_slo(by_system([run("+zigzag")])) == (None, None)


def test_requests_that_are_late_or_lost_do_not_attain() -> None:
    _, slo = find_slo(by_system([run("distserve-full")]))
    assert summarise([run("a", ttft=0.6)], slo).attainment == 0
    assert summarise([faulty(run("a"), 2)], slo).attainment == pytest.approx(0.8)


def test_a_step_of_the_ladder_must_not_be_worse() -> None:
    runs = [run("serverlessllm", ttft=1.0), run("+network", ttft=0.5), run("+multicast", ttft=0.6)]
    rows = {row.case: row for row in rows_of([summarise([one], None) for one in runs])}
    assert rows["+network to serverlessllm: TTFT mean"].ok
    assert rows["+multicast to +network: TTFT mean"].ok is False


def test_with_parked_parameters_and_with_roles_it_has_rows_of_its_own() -> None:
    runs = [run("+roles", used=55.0), run("+parked", used=61.0), run("distserve-full", used=100.0)]
    _, slo = find_slo(by_system(runs))
    rows = {row.case: row for row in rows_of([summarise([one], slo) for one in runs])}
    assert rows["+roles to distserve-full: used"].ok
    assert rows["+parked to distserve-full: used"].ok is False


def test_the_whole_is_held_against_what_is_provisioned_and_what_is_ideal() -> None:
    runs = [
        run("+zigzag", ttft=0.2, used=50.0),
        run("distserve-full", used=100.0),
        run("distserve-half", ttft=0.5, used=50.0),
        run("ideal", used=40.0),
    ]
    _, slo = find_slo(by_system(runs))
    rows = {row.case: row for row in rows_of([summarise([one], slo) for one in runs])}
    assert [(case, row.ok) for case, row in rows.items() if row.bar is not None] == [
        ("+zigzag to distserve-full: used", True),
        ("+zigzag to distserve-full: attainment lost, to a point", True),
        ("+zigzag to ideal: used", False),
        ("+zigzag to ideal: attainment lost, to a point", True),
        ("+zigzag to distserve-half: TTFT mean", False),
        ("+zigzag to distserve-half: used", True),
    ]
