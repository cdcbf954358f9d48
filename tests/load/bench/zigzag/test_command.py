"""`livescale bench zigzag`, on a small grid."""

from random import Random

import pytest
from click.testing import CliRunner, Result

from livescale.load.bench.zigzag import command as bench
from livescale.load.bench.zigzag.command import Case, compare, explained, poisson, tasks_at, zigzag
from tests.load.bench.bench_output import records_of


@pytest.fixture(scope="module")
def result() -> Result:
    with pytest.MonkeyPatch.context() as small:
        small.setattr(bench, "LAYERS", (4,))
        small.setattr(bench, "LOADS", (6.5,))
        small.setattr(bench, "SOLVE_LAYERS", 8)
        small.setattr(bench, "SOLVE_LOADS", (6.0,))
        small.setattr(bench, "SOLVE_MS", 60_000.0)
        return CliRunner().invoke(zigzag, ["--worst", "2"])


def test_the_worst_case_of_each_load_is_near_the_optimum(result: Result) -> None:
    assert result.exit_code == 0, result.output
    records = records_of(result)
    (grid,) = (record for record in records if record["case"].startswith("4 layers, load 6.5: "))
    assert grid["bar"] == 1.05
    assert 1.0 < grid["ratio"] <= 1.05
    gains = {
        record["case"].split("against ")[1]: record["ratio"] for record in records if "24 layers" in record["case"]
    }
    assert gains["best-effort"] < 0.75


def test_it_tells_how_many_miss_the_slo_by_how_fast_parameters_load(result: Result) -> None:
    records = records_of(result)
    shares = {
        one["case"].split(":")[0]: (one["value"], one["against"]) for one in records if "over the SLO" in one["case"]
    }
    assert list(shares.values()) == sorted(shares.values())
    assert all(live <= stop for live, stop in shares.values())
    assert shares["32 layers, load 0.5"] == (0.0, 0.0)
    assert shares["32 layers, load 15"][1] > 0.3
    chosen = [one["case"].split("by need: ")[1] for one in records if "by need" in one["case"]]
    assert (chosen[0], chosen[-1]) == ("stop", "live")


def test_short_prompts_gain_by_running_together_the_more_the_more_a_layer_takes_as_such(result: Result) -> None:
    records = records_of(result)
    ratios = [one["ratio"] for one in records if one["case"].endswith(", together")]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] < 0.9


def test_it_explains_as_many_as_were_asked_for(result: Result) -> None:
    assert result.stderr.count("on target, optimum") == 2
    assert "first behind: batch 02 left at 7 with 1 layers run" in result.stderr


def test_a_case_that_is_no_worse_than_the_optimum_has_nobody_behind() -> None:
    case = Case("two wait", 4, 2.0, tasks_at([0.0, 0.0], [1.0, 1.0]))
    text = explained(compare(case))
    assert text.startswith("4 layers, load 2, two wait: 1.000")
    assert "behind" not in text


def test_random_arrivals_are_in_order_and_begin_with_the_first_block() -> None:
    arrivals = poisson(Random(5), 3.0)
    assert arrivals[0] == 0.0
    assert arrivals == sorted(arrivals)
