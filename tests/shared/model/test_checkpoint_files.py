"""Small files of a checkpoint: read with bounds, and never waited for."""

import os
from pathlib import Path
from typing import Any

import pytest

from livescale.shared.model.checkpoint_files import cannot_read, decode_file, open_regular, read_file
from livescale.shared.model.declaration.config_file import CheckpointError


def test_a_file_up_to_the_limit_is_read_and_a_larger_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"12345")
    assert read_file(path, 5) == b"12345"
    with pytest.raises(CheckpointError, match=r"config\.json: larger than 4 bytes"):
        read_file(path, 4)


def test_a_pipe_a_directory_and_a_device_are_refused_at_once_and_nothing_stays_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = os.listdir("/proc/self/fd")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(CheckpointError, match="not a regular file"):
            open_regular(path)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"[1]", "Expected `object`, got `array`"),
        (b'{"a": ', "truncated"),
        (b"", "truncated"),
        (b"\xff\xfe{", "malformed"),
        (b'{"a": ' * 100_000, "recursion"),
    ],
)
def test_what_is_no_such_json_is_refused_by_path_with_a_remedy(tmp_path: Path, data: bytes, problem: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"(?i)config\.json: .*({problem}).*; repair or download"):
        decode_file(path, dict[str, Any])


def test_a_file_that_is_not_there_is_refused_with_what_a_checkpoint_has(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"No such file.*config\.json and \*\.safetensors"):
        decode_file(tmp_path / "config.json", dict[str, int])
    (tmp_path / "config.json").write_bytes(b'{"a": 1}')
    assert decode_file(tmp_path / "config.json", dict[str, int]) == {"a": 1}


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (PermissionError(13, "Permission denied"), "give this user the right to read it"),
        (FileNotFoundError(2, "No such file or directory"), "download it again"),
    ],
)
def test_who_may_not_read_a_file_is_not_told_to_download_it(error: OSError, remedy: str) -> None:
    expected = f"/m/config.json: cannot be read ({error.strerror}); {remedy}"
    assert str(cannot_read(Path("/m/config.json"), error, "download it again")) == expected
