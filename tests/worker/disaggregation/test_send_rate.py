import pytest

from livescale.services.worker.disaggregation.pieces import LEAST_PIECE_BYTES
from livescale.services.worker.disaggregation.send_rate import WEIGHT, KvSendRate


def test_what_is_sent_at_the_same_time_shares_the_time() -> None:
    rate = KvSendRate()
    for _ in range(4):
        rate.begin(10.0)
    for number in range(4):
        rate.end(11.0 + number, LEAST_PIECE_BYTES // 4, 100.0)
    assert rate.tokens_per_second == pytest.approx(400 / 4)


def test_idle_time_counts_nothing_and_the_average_follows() -> None:
    rate = KvSendRate()
    rate.begin(0.0)
    rate.end(1.0, LEAST_PIECE_BYTES // 2, 50.0)
    assert rate.tokens_per_second is None
    rate.begin(50.0)
    rate.end(51.0, LEAST_PIECE_BYTES // 2, 50.0)
    assert rate.tokens_per_second == pytest.approx(50.0)
    rate.begin(90.0)
    rate.end(90.5, LEAST_PIECE_BYTES, 100.0)
    assert rate.tokens_per_second == pytest.approx(50 + WEIGHT * 150)


def test_time_lost_to_a_failure_counts() -> None:
    rate = KvSendRate()
    rate.begin(0.0)
    rate.end(3.0)
    rate.begin(3.0)
    rate.end(4.0, LEAST_PIECE_BYTES, 100.0)
    assert rate.tokens_per_second == pytest.approx(25.0)
