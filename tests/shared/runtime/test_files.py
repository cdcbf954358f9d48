"""A file that is written anew: whole or as before, with its mode, and nothing beside it."""

import os
import stat
from pathlib import Path

import pytest

from livescale.shared.runtime.files import write_atomically


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_replaced_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "note"
    path.write_bytes(b"before")
    path.chmod(0o644)
    write_atomically(path, b"after")
    assert (path.read_bytes(), mode_of(path), os.listdir(tmp_path)) == (b"after", 0o600, ["note"])


def test_a_mode_is_cut_by_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "targets", b"[]", 0o666)
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "targets") == 0o640


def test_where_it_cannot_be_replaced_nothing_is_left_beside_it(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_atomically(tmp_path / "taken", b"data")
    assert os.listdir(tmp_path) == ["taken"]
