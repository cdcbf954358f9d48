"""When a process that ended is started again."""

import pytest

from livescale.services.supervisor.restarts import GiveUp, Restart, RestartPolicy


def test_delays_double_and_are_bounded() -> None:
    policy = RestartPolicy(most_quick_deaths=8, first_delay_seconds=0.1, longest_delay_seconds=0.5)
    delays = [policy.after_death(1.0, "exit status 1") for _ in range(5)]
    assert [each.delay_seconds for each in delays if isinstance(each, Restart)] == [0.1, 0.2, 0.4, 0.5, 0.5]


def test_quick_deaths_in_a_row_end_in_giving_up_with_the_reason() -> None:
    policy = RestartPolicy(most_quick_deaths=3)
    assert isinstance(policy.after_death(0.1, "exit status 1"), Restart)
    assert isinstance(policy.after_death(0.1, "exit status 1"), Restart)
    last = policy.after_death(0.1, "exit status 1")
    assert isinstance(last, GiveUp)
    assert "exit status 1" in last.reason


def test_a_long_life_forgives_the_quick_deaths_before_it() -> None:
    policy = RestartPolicy(most_quick_deaths=2)
    policy.after_death(0.1, "exit status 1")
    assert policy.after_death(60.0, "killed by SIGKILL") == Restart(0.1, "killed by SIGKILL after 60 s")
    assert isinstance(policy.after_death(0.1, "exit status 1"), Restart)


@pytest.mark.parametrize(("lived", "gives_up"), [(9.99, True), (10.0, False)])
def test_the_limit_of_a_quick_death_is_exact(lived: float, gives_up: bool) -> None:
    policy = RestartPolicy(quick_seconds=10.0, most_quick_deaths=1)
    assert isinstance(policy.after_death(lived, "exit status 0"), GiveUp) is gives_up
