import pytest

from livescale.load.bench.pipeline.command import forming_runs


@pytest.mark.parametrize(("repeats", "more"), [(1, 7), (3, 1), (4, 0)])
def test_there_are_ten_runs_that_tell_whether_pipelines_form(repeats: int, more: int) -> None:
    assert forming_runs(repeats) == more
