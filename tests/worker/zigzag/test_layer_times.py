"""Weights of batches from measured layer times."""

import pytest

from livescale.services.worker.zigzag.layer_times import LayerTimes


def test_between_two_measurements_and_beyond_them_times_lie_on_a_line() -> None:
    times = LayerTimes({128: 0.01, 512: 0.03, 1024: 0.07})
    assert times.seconds(128) == times.seconds(1) == 0.01
    assert times.seconds(320) == pytest.approx(0.02)
    assert times.seconds(512) == pytest.approx(0.03)
    assert times.seconds(768) == pytest.approx(0.05)
    assert times.seconds(2048) == pytest.approx(0.15)


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="at least two sizes"):
        LayerTimes({128: 0.01})
    with pytest.raises(ValueError, match=r"0\.01 s for 256"):
        LayerTimes({128: 0.02, 256: 0.01})
    with pytest.raises(ValueError, match=r"0\.0 s for 128"):
        LayerTimes({128: 0.0, 256: 0.01})
