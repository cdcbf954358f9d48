"""What is left of a read for the next one, and how little of it is believed."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from livescale.services.host.stored import Stored, open_stored
from livescale.shared.memory.arena import Arena
from livescale.shared.model.checkpoint import CheckpointError
from tests.checkpoints import copy_checkpoint, tiny_checkpoint
from tests.fuzz.effort import examples
from tests.host.spoil import rewrite_json

JSON, PACKED = "livescale-bfloat16.manifest.json", "livescale-bfloat16.packed"


@contextmanager
def opened(directory: Path, packed_dir: str = "") -> Iterator[Stored]:
    with closing(open_stored(directory, "bfloat16", keep=True, packed_dir=packed_dir)) as stored:
        yield stored


def read(stored: Stored) -> tuple[list[int], list[memoryview]]:
    blocks = Arena(sum(-(-size // 4096) * 4096 for size in stored.sizes)).place(stored.sizes)
    return [stored.read_block(index, block) for index, block in enumerate(blocks)], blocks


def read_and_keep(directory: Path, packed_dir: str = "") -> list[memoryview]:
    with opened(directory, packed_dir) as stored:
        checksums, blocks = read(stored)
        stored.keep(stored.checkpoint.manifest(checksums), blocks, lambda: False)
    return blocks


@pytest.fixture(params=["llama", "qwen2"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[memoryview]]:
    """A checkpoint that was read before, and its blocks."""
    directory = copy_checkpoint(request.param, tmp_path)
    return directory, read_and_keep(directory)


@pytest.fixture(scope="module")
def kept_once() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = copy_checkpoint("qwen2", Path(directory))
        read_and_keep(checkpoint)
        yield checkpoint


def test_the_second_read_knows_the_version_and_reads_the_packed_form(kept: tuple[Path, list[memoryview]]) -> None:
    directory, blocks = kept
    for file in directory.glob("*.safetensors"):
        size, times = file.stat().st_size, (file.stat().st_atime_ns, file.stat().st_mtime_ns)
        file.write_bytes(file.read_bytes()[: size // 2] + bytes(size - size // 2))  # what is not read is not missed
        os.utime(file, ns=times)
    with opened(directory) as stored:
        assert stored.manifest is not None
        assert stored.is_packed
        checksums, again = read(stored)
        assert again == blocks
        assert stored.checkpoint.manifest(checksums) == stored.manifest


def test_nothing_is_looked_for_or_left_where_nothing_shall_be_kept(kept: tuple[Path, list[memoryview]]) -> None:
    directory, blocks = kept
    before = sorted(os.listdir(directory))
    with closing(open_stored(directory, "bfloat16", keep=False)) as stored:
        assert stored.manifest is None
        checksums, again = read(stored)
        assert again == blocks
        stored.keep(stored.checkpoint.manifest(checksums), again, lambda: False)
    assert sorted(os.listdir(directory)) == before


def test_each_dtype_is_kept_apart(kept: tuple[Path, list[memoryview]]) -> None:
    with closing(open_stored(kept[0], "float32", keep=True)) as stored:
        assert stored.manifest is None


@pytest.mark.parametrize("change", ["times", "size", "config", "missing"])
def test_a_checkpoint_that_changed_is_read_anew(kept_once: Path, tmp_path: Path, change: str) -> None:
    directory = Path(shutil.copytree(kept_once, tmp_path / "m"))
    match change:
        case "times":
            os.utime(directory / "model.safetensors", ns=(1, 1))
        case "size":
            shutil.copy2(tiny_checkpoint("qwen2") / "model.safetensors", directory / "other")
            (directory / "other").replace(directory / "model.safetensors")
            data = (directory / "model.safetensors").read_bytes()
            size = int.from_bytes(data[:8], "little")
            header = data[8 : 8 + size] + b" " * 8
            (directory / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :])
        case "config":
            rewrite_json(directory / "config.json", rms_norm_eps=1e-3)
        case _:
            (directory / JSON).unlink()
    with opened(directory) as stored:
        assert stored.manifest is None
        assert not stored.is_packed
        read(stored)


@examples(100)
@given(st.data())
def test_a_damaged_note_of_an_earlier_read_is_ignored_or_says_the_same(kept_once: Path, data: st.DataObject) -> None:
    good = (kept_once / JSON).read_bytes()
    with opened(kept_once) as stored:
        right = stored.manifest
    changed = bytearray(good)
    match data.draw(st.sampled_from(["flip", "cut", "other"])):
        case "flip":
            changed[data.draw(st.integers(0, len(good) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        case "cut":
            del changed[data.draw(st.integers(0, len(good))) :]
        case _:
            changed = bytearray(data.draw(st.binary(max_size=50)))
    (kept_once / JSON).write_bytes(changed)
    try:
        with opened(kept_once) as stored:
            assert stored.manifest in (None, right)
    finally:
        (kept_once / JSON).write_bytes(good)


@pytest.mark.parametrize(
    "other",
    [
        b"[" * 100_000,
        b'{"files":[],"version":"../../etc","checksums":[1]}',
        b'{"files":[["../../../etc/passwd",1,1]],"version":"","checksums":[]}',
        b'{"files":[],"version":"","checksums":[' + b"9" * 4_000 + b"]}",
    ],
)
def test_a_forged_note_is_ignored(kept_once: Path, tmp_path: Path, other: bytes) -> None:
    directory = Path(shutil.copytree(kept_once, tmp_path / "m"))
    (directory / JSON).write_bytes(other)
    with opened(directory) as stored:
        assert stored.manifest is None


@pytest.mark.parametrize("trap", ["cut", "flip", "pipe", "directory", "dangling link"])
def test_a_damaged_packed_form_is_ignored_and_written_anew(kept_once: Path, tmp_path: Path, trap: str) -> None:
    directory = Path(shutil.copytree(kept_once, tmp_path / "m"))
    packed = directory / PACKED
    good = packed.read_bytes()
    packed.unlink()
    match trap:
        case "cut":
            packed.write_bytes(good[:-4096])
        case "flip":
            packed.write_bytes(bytes([good[0] ^ 1]) + good[1:])
        case "pipe":
            os.mkfifo(packed)
        case "directory":
            packed.mkdir()
        case _:
            packed.symlink_to("/nowhere")
    with opened(directory) as stored:
        assert stored.manifest is not None
        assert not stored.is_packed
        checksums, blocks = read(stored)
        stored.keep(stored.checkpoint.manifest(checksums), blocks, lambda: False)
    if trap != "directory":
        assert packed.read_bytes() == good
    assert not (directory / f"{PACKED}.part").exists()


def test_a_block_that_is_damaged_in_the_packed_form_is_read_from_the_checkpoint(
    kept: tuple[Path, list[memoryview]],
) -> None:
    directory, blocks = kept
    good = (directory / PACKED).read_bytes()
    damaged = bytearray(good)
    damaged[4096 + blocks[0].nbytes + 5000] ^= 1  # within block 1
    (directory / PACKED).write_bytes(damaged)
    with opened(directory) as stored, capture_logs() as logs:
        assert stored.is_packed
        checksums, again = read(stored)
        assert again == blocks
        assert not stored.is_packed
        assert [entry["error"] for entry in logs] == ["block 1 is damaged"]
        stored.keep(stored.checkpoint.manifest(checksums), again, lambda: False)
    assert (directory / PACKED).read_bytes() == good


def test_a_checkpoint_that_changed_though_it_looks_the_same_is_refused_once_and_then_read_anew(
    kept: tuple[Path, list[memoryview]],
) -> None:
    directory, _ = kept
    (directory / PACKED).unlink()
    file = next(directory.glob("*.safetensors"))
    status, data = file.stat(), bytearray(file.read_bytes())
    data[-2] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    with opened(directory) as stored, pytest.raises(CheckpointError, match=r"block \d is not that of version"):
        read(stored)
    with opened(directory) as stored:
        assert stored.manifest is None
        read(stored)


def test_users_who_may_not_read_the_checkpoint_may_not_read_its_copy(tmp_path: Path) -> None:
    directory = copy_checkpoint("llama", tmp_path)
    for file, mode in zip(sorted(directory.glob("*.safetensors")), (0o640, 0o644, 0o664), strict=False):
        file.chmod(mode)
    read_and_keep(directory)
    assert [(directory / name).stat().st_mode & 0o777 for name in (JSON, PACKED)] == [0o640, 0o640]


def test_what_changes_while_it_is_read_is_not_kept(tmp_path: Path) -> None:
    directory = copy_checkpoint("qwen2", tmp_path)
    with opened(directory) as stored:
        checksums, blocks = read(stored)
        os.utime(directory / "model.safetensors", ns=(1, 1))
        stored.keep(stored.checkpoint.manifest(checksums), blocks, lambda: False)
    assert not list(directory.glob("livescale-bfloat16*"))


def test_a_directory_of_its_own_is_used_alone(tmp_path: Path) -> None:
    directory, packs = copy_checkpoint("qwen2", tmp_path), tmp_path / "packs"
    read_and_keep(directory, str(packs))
    assert not list(directory.glob("livescale-bfloat16*"))
    assert len(list(packs.iterdir())) == 2
    with opened(directory, str(packs)) as stored:
        assert stored.is_packed
    with opened(directory) as stored:
        assert stored.manifest is None


def test_where_nobody_may_write_the_users_cache_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = copy_checkpoint("qwen2", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != directory)
    read_and_keep(directory)
    assert not list(directory.glob("livescale-bfloat16*"))
    assert len(list((tmp_path / "cache" / "livescale" / "packed").iterdir())) == 2
    with opened(directory) as stored:
        assert stored.is_packed


def test_without_room_only_the_version_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = copy_checkpoint("qwen2", tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=1 << 30, free=100 << 20))
    with capture_logs() as logs:
        read_and_keep(directory)
    assert [(entry["event"], entry["error"]) for entry in logs] == [("model_not_packed", "too little room")]
    with opened(directory) as stored:
        assert stored.manifest is not None
        assert not stored.is_packed
        read(stored)


def test_a_full_disk_costs_one_line_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = copy_checkpoint("qwen2", tmp_path)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with capture_logs() as logs:
        read_and_keep(directory)
    assert [entry["event"] for entry in logs] == ["model_not_packed"]
    assert "No space left" in logs[0]["error"]
    assert [path.name for path in directory.glob("livescale-bfloat16*")] == [JSON]


def test_a_whole_checkpoint_is_packed_without_a_host(kept: tuple[Path, list[memoryview]], tmp_path: Path) -> None:
    directory, blocks = kept
    good = (directory / PACKED).read_bytes()
    (directory / PACKED).unlink()
    (directory / JSON).unlink()
    told: list[int] = []
    with opened(directory) as stored:
        assert stored.pack(told.append) == directory / PACKED
        assert told == stored.sizes
    assert (directory / PACKED).read_bytes() == good
    with opened(directory) as stored:
        assert stored.is_packed
        assert read(stored)[1] == blocks
