from pathlib import Path

import pytest

from livescale.services.host.disk import available_bytes


@pytest.mark.parametrize(
    ("limit", "used", "files", "expected"),
    [
        ("max", 0, 0, 8_192),
        ("4096", 0, 0, 4_096),
        ("9000", 1_000, 0, 8_000),
        ("9000", 1_000, 500, 8_192),
        ("9", 10, 0, 0),
    ],
)
def test_available_memory_is_what_the_machine_and_the_container_have_left(
    tmp_path: Path, limit: str, used: int, files: int, expected: int
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  99 kB\nMemFree:   1 kB\nMemAvailable:   8 kB\nHugePages_Total:  0\n")
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    (tmp_path / "memory.stat").write_text(f"anon 7\ninactive_file {files}\n")
    assert available_bytes(meminfo, tmp_path) == expected
    (tmp_path / "memory.max").unlink()
    assert available_bytes(meminfo, tmp_path) == 8_192


def test_this_machine_has_memory() -> None:
    assert available_bytes() > 1 << 20
