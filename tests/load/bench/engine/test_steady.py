"""What is measured while the core changes its speed is measured again."""

from livescale.load.bench.engine.steady import ATTEMPTS, Attempt, steadiest


def asked(*speeds: float) -> tuple[Attempt[int], list[str]]:
    """The attempt that is kept, of those numbered from 0 on, on a core with these speeds; and what was told."""
    told: list[str] = []
    left, number = iter(speeds), iter(range(ATTEMPTS))
    attempt = steadiest(lambda: next(left), lambda: next(number), told.append)
    assert next(left, None) is None
    return attempt, told


def test_on_a_steady_core_everything_is_measured_once() -> None:
    assert asked(100.0, 95.0) == (Attempt(100.0, 0, 95.0), [])


def test_it_is_measured_again_until_the_core_is_as_fast_after_it_as_before() -> None:
    attempt, told = asked(100.0, 30.0, 90.0, 92.0)
    assert attempt == Attempt(90.0, 2, 92.0)
    assert told == [f"the core's speed changed {times} times meanwhile: again" for times in ("3.3", "3.0")]


def test_on_a_core_that_never_rests_the_steadiest_counts() -> None:
    attempt, told = asked(100.0, 30.0, 60.0, 100.0, 20.0)
    assert (attempt, len(told)) == (Attempt(60.0, 2, 100.0), ATTEMPTS - 1)
