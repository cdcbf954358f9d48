from livescale.load.bench.live.page import render_live
from tests.load.bench.bench_output import CONDITIONS
from tests.load.bench.live.runs import done, told


def test_the_page_says_what_was_missed_and_draws_every_mode() -> None:
    made = done()
    page = render_live(made, list(told(made).values()), 1, CONDITIONS)
    assert "Missed: finished while it loads." in page
    assert page.count("<svg") == 4
    assert page.count("best-effort") > 3
