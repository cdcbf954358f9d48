import re

from livescale.load.bench.pipeline.page import rate_at, render_pipeline
from tests.load.bench.bench_output import CONDITIONS
from tests.load.bench.pipeline.runs import RUNS, said


def test_the_page_says_what_was_missed_and_draws_each_number_of_sources() -> None:
    page = render_pipeline(RUNS, list(said(RUNS).values()), 1, CONDITIONS)
    assert re.search("Missed: .*k = 1: first token", page)
    assert page.count("<svg") == 3
    assert {"off, k = 1", "pipeline, k = 2"} <= set(re.findall(r">([^<]*)<", page))


def test_a_rate_is_of_the_second_around_a_moment() -> None:
    assert [rate_at([0.4, 1.0, 1.5, 1.6], at) for at in (0.0, 1.0, 1.2, 9.0)] == [1.0, 1.0, 3.0, 0.0]
