import pytest

from livescale.load.machines import CannotEmulate, network


@pytest.fixture(scope="session")
def can_emulate() -> None:
    """Skip tests where machines cannot be emulated."""
    try:
        with network(["one"], "1mbit"):
            pass
    except CannotEmulate as reason:
        pytest.skip(str(reason))
