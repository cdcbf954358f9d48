import pytest

from livescale.load.machines import CannotEmulate, network


@pytest.fixture(scope="session")
def can_emulate() -> None:
    """Skips where no machines can be emulated."""
    try:
        with network(["one"], "1mbit"):
            pass
    except CannotEmulate as reason:
        pytest.skip(str(reason))
