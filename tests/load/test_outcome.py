from livescale.load.outcome import find_faults
from tests.load.sample_run import record


def test_requests_that_never_ended_are_faults_too() -> None:
    assert find_faults([record(0, 0.0)], asked=3) == ["a request never ended"] * 2
