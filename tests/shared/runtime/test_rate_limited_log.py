from structlog.testing import capture_logs

from livescale.shared.runtime.rate_limited_log import KEYS, RateLimitedLog


def test_a_flood_is_one_line_that_later_says_how_many_were_left_out() -> None:
    now = 0.0
    with capture_logs() as lines:
        log = RateLimitedLog(lambda: now)
        for _ in range(1000):
            log.warning("late", "tok.a")
        log.warning("late", "tok.b")
        now = 6.0
        log.warning("late", "tok.a", worker="w")
    assert [(line["subject"], line["more"]) for line in lines] == [("tok.a", 0), ("tok.b", 0), ("tok.a", 999)]
    assert lines[-1]["worker"] == "w"


def test_a_flood_of_subjects_is_forgotten_in_time() -> None:
    with capture_logs():
        log = RateLimitedLog(lambda: 0.0)
        for number in range(3 * KEYS):
            log.warning("late", str(number))
        assert len(log._last) <= KEYS
