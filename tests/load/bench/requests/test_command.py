import pytest

from livescale.load.bench.requests.command import unused_row


@pytest.mark.parametrize(("computed", "is_kept"), [(0, True), (1, False)])
def test_a_row_that_is_computed_where_nobody_asks_breaks_the_bar(computed: int, is_kept: bool) -> None:
    assert unused_row("b1", {"plain": computed, "masked": 400}).ok is is_kept
