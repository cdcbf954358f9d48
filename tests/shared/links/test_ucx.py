"""What UCX alone does."""

import pytest

from livescale.shared.runtime.settings import LinkSettings
from tests.shared.links.conftest import connected


async def test_what_the_environment_takes_from_ucx_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")
    pair = await connected(LinkSettings())
    assert pair.to_b.path.name == "tcp"
    await pair.a.close()
    await pair.b.close()
