from livescale.load.workers_in_use import note, used_seconds


def test_used_seconds_are_those_between_two_times() -> None:
    steps = [(0.0, 1.0), (10.0, 3.0), (20.0, 2.0)]
    assert used_seconds(steps, 5.0, 30.0) == 5 + 30 + 20
    assert used_seconds(steps, 12.0, 14.0) == 6


def test_a_step_is_noted_only_where_something_changes() -> None:
    steps = [(0.0, 1.0)]
    for at, value in ((1.0, 1.0), (2.0, 4.0), (3.0, 4.0)):
        note(steps, at, value)
    assert steps == [(0.0, 1.0), (2.0, 4.0)]
