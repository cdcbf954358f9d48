from livescale.services.worker.zigzag.forecast import Forecast


def test_missing_layers_are_expected_at_the_pace_of_those_that_came() -> None:
    seen = Forecast([200, 100, 100, 50], began=10.0)
    assert seen.ready(10.0) is None
    seen.arrived(2, 13.0)
    assert seen.ready(13.0) == [0.0, 0.0, 1.0, 1.5]
    assert seen.ready(13.5) == [0.0, 0.0, 0.5, 1.0]


def test_a_layer_that_is_late_is_expected_at_any_moment() -> None:
    seen = Forecast([100, 100, 100], began=0.0)
    seen.arrived(1, 1.0)
    assert seen.ready(2.5) == [0.0, 0.0, 0.5]


def test_word_of_fewer_layers_than_are_here_is_old() -> None:
    seen = Forecast([100, 100], began=0.0)
    seen.arrived(1, 1.0)
    seen.arrived(1, 5.0)
    assert seen.ready(5.0) == [0.0, 0.0]


def test_layers_take_as_long_as_those_that_were_run_by_row() -> None:
    seen = Forecast([100, 100], began=0.0)
    assert seen.layer_seconds(10) is None
    seen.ran(10, 0.1)
    seen.ran(30, 0.1)
    assert seen.layer_seconds(100) == 0.5
