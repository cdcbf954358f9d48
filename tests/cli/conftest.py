"""Commands are run as on a machine where nothing is set and nothing runs; what they configure is undone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in ("NATS_URL", "LIVESCALE_NATS_URL", "LIVESCALE_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LIVESCALE_STATE_DIR", str(tmp_path))
    before = structlog.get_config()
    yield
    structlog.configure(**before)
