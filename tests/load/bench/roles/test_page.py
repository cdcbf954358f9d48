from livescale.load.bench.roles.page import render_roles
from tests.load.bench.bench_output import CONDITIONS
from tests.load.bench.roles.runs import RUNS, done, run, told


def test_the_page_says_what_was_missed_and_draws_gaps_first_tokens_and_what_is_exposed() -> None:
    made = done([*RUNS, run("switched", 1.0, 0.1, moved=1.0)])
    page = render_roles(made, list(told(made).values()), 1, CONDITIONS)
    assert "Missed: parameters moved as roles change." in page
    assert page.count("<svg") == 3
    assert all(f">{name}<" in page for name in ("apart", "colocated", "switched", "by layer", "by request"))
