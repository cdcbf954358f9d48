"""Opening a connection that cannot be opened."""

import pytest

from livescale.shared.bus.contract import (
    BusError,
    Disconnected,
)
from livescale.shared.bus.nats import NatsBus


async def test_a_server_that_is_not_there_is_named(closed_port: int) -> None:
    with pytest.raises(Disconnected, match=f"no NATS server at nats://127.0.0.1:{closed_port} within 0.3 s"):
        await NatsBus.connect(f"nats://127.0.0.1:{closed_port}", "test", "a", timeout=0.3)


@pytest.mark.parametrize(
    "url", ["", "localhost:4222", "http://localhost:4222", "nats://", "nats://h:99999", "nats://h:x"]
)
async def test_a_malformed_address_is_refused_by_name(url: str) -> None:
    with pytest.raises(BusError, match=f"'{url}' is not the URL of a NATS server: write nats://host:port"):
        await NatsBus.connect(url, "test", "a")


async def test_a_password_in_the_address_is_not_shown(closed_port: int) -> None:
    with pytest.raises(Disconnected) as absent:
        await NatsBus.connect(f"nats://me:secret@127.0.0.1:{closed_port}", "test", "a", timeout=0.2)
    assert "secret" not in str(absent.value)
