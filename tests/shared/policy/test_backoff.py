from livescale.shared.policy.backoff import Backoff


def test_every_failure_in_a_row_doubles_the_wait_up_to_the_longest() -> None:
    backoff, now, waits = Backoff(1.0, 6.0), 0.0, []
    for _ in range(5):
        assert backoff.is_due("m", now)
        backoff.failed("m", now)
        waits.append(backoff.wait_seconds("m"))
        assert not backoff.is_due("m", now + waits[-1] - 0.1)
        now += waits[-1]
    assert waits == [1.0, 2.0, 4.0, 6.0, 6.0]


def test_a_success_forgets_the_failures_and_one_key_says_nothing_of_another() -> None:
    backoff = Backoff(1.0, 6.0)
    backoff.failed("m", 0.0)
    backoff.failed("m", 1.0)
    assert backoff.is_due("other", 0.0)
    backoff.succeeded("m")
    assert backoff.is_due("m", 1.0)
    backoff.failed("m", 2.0)
    assert backoff.wait_seconds("m") == 1.0
