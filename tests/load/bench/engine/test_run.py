import numpy as np
import pytest

from livescale.load.bench.engine.run import relative_error


def test_an_error_of_logits_is_relative_to_their_spread_and_the_worst_row_counts() -> None:
    exact = np.array([0.0, 2.0] * 50, np.float32)
    off = exact + np.float32(0.5)
    assert relative_error([exact.tobytes(), off.tobytes()], [exact.tobytes()] * 2) == pytest.approx(0.5)
    assert relative_error([off[:-1].tobytes()], [exact.tobytes()]) == float("inf")
    assert relative_error([(off * np.nan).tobytes()], [exact.tobytes()]) == float("inf")
