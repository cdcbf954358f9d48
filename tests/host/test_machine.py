from pathlib import Path

import pytest

from services.host.machine import available_bytes


@pytest.mark.parametrize(
    ("limit", "expected"), [("max\n", 8_192), ("4096\n", 4_096), ("100000\n", 8_192), (None, 8_192)]
)
def test_available_memory_respects_the_container(tmp_path: Path, limit: str | None, expected: int) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  99 kB\nMemFree:   1 kB\nMemAvailable:   8 kB\n")
    if limit is not None:
        (tmp_path / "limit").write_text(limit)
    assert available_bytes(tmp_path / "meminfo", tmp_path / "limit") == expected


def test_this_machine_has_memory() -> None:
    assert available_bytes() > 1 << 20
