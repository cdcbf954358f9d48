"""The packed form: written whole or not at all, and read only where it is exactly what the manifest says."""

import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from livescale.services.host.packed_file import (
    CHUNK_BYTES,
    PAGE,
    DirectFile,
    FileEnded,
    NotPacked,
    PackedFile,
    PackStopped,
    PackWriter,
)
from livescale.shared.messages.parameters import Block, Manifest
from livescale.shared.model.checkpoint import CheckpointError
from tests.host.test_cache import MANIFEST

SIZES = (5_000, PAGE, 1)

SIZE = 2 * CHUNK_BYTES - 3 * PAGE + 100  # two chunks


def manifest_of(sizes: Sequence[int], version: str = "v1") -> Manifest:
    blocks = [Block(index=i, name=f"b{i}", size_bytes=size, checksum=0, tensors=[]) for i, size in enumerate(sizes)]
    return replace(MANIFEST, version=version, blocks=blocks)


def bytes_of(sizes: Sequence[int]) -> list[memoryview]:
    return [memoryview(bytes([index + 1]) * size) for index, size in enumerate(sizes)]


def write(path: Path, sizes: Sequence[int] = SIZES, blocks: Sequence[memoryview] = ()) -> None:
    with PackWriter(path, sizes) as writer:
        for block in blocks or bytes_of(sizes):
            writer.write(block)
        writer.finish("v1")


def read(path: Path, sizes: Sequence[int] = SIZES, version: str = "v1") -> list[bytes]:
    packed = PackedFile(path, manifest_of(sizes, version))
    try:
        memory = [bytearray(size) for size in sizes]
        for index, block in enumerate(memory):
            packed.read_block(index, memoryview(block))
    finally:
        packed.file.close()
    return [bytes(block) for block in memory]


@given(st.lists(st.integers(0, 3 * PAGE), max_size=6))
def test_what_was_written_is_read(sizes: list[int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        write(Path(directory) / "m.packed", sizes)
        assert read(Path(directory) / "m.packed", sizes) == bytes_of(sizes)
        assert os.listdir(directory) == ["m.packed"]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at // 8] ^= 1 << at % 8
    path.write_bytes(data)


@given(st.integers(0, PAGE * 8 - 1))
def test_a_first_page_with_a_flipped_bit_is_refused(bit: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "m.packed"
        write(path)
        flip(path, bit)
        with pytest.raises(NotPacked, match="first page"):
            read(path)


@given(st.integers(0, 4 * PAGE).filter(lambda size: size != 5 * PAGE))
def test_a_file_of_another_size_is_refused(size: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "m.packed"
        write(path)
        os.truncate(path, size)
        with pytest.raises(NotPacked, match=f"it has {size} bytes, not {5 * PAGE}"):
            read(path)


def test_another_version_or_another_number_of_blocks_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "m.packed")
    with pytest.raises(NotPacked, match="version v2"):
        read(tmp_path / "m.packed", version="v2")
    with pytest.raises(NotPacked):
        read(tmp_path / "m.packed", [8_192, PAGE, 0, 1])


def test_a_file_that_is_cut_short_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "m.packed"
    write(path)
    packed = PackedFile(path, manifest_of(SIZES))
    os.truncate(path, PAGE)
    with pytest.raises(FileEnded):
        packed.read_block(0, memoryview(bytearray(SIZES[0])))
    packed.file.close()


def test_nothing_is_left_of_a_packed_form_that_was_not_finished(tmp_path: Path) -> None:
    with pytest.raises(IndexError):
        write(tmp_path / "m.packed", blocks=bytes_of([*SIZES, 1]))
    assert list(tmp_path.iterdir()) == []


def test_writing_stops_between_chunks_when_nobody_waits_for_it(tmp_path: Path) -> None:
    asked = 0

    def stopped() -> bool:
        nonlocal asked
        asked += 1
        return asked == 2

    with pytest.raises(PackStopped), PackWriter(tmp_path / "m.packed", [2 * CHUNK_BYTES], stopped=stopped) as writer:
        writer.write(memoryview(bytes(2 * CHUNK_BYTES)))
    assert asked == 2
    assert list(tmp_path.iterdir()) == []


def test_the_old_packed_form_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "m.packed"
    write(path)
    with PackWriter(path, SIZES) as writer:
        for block in bytes_of(SIZES):
            writer.write(block)
        assert read(path)
        writer.finish("v2")
    assert read(path, version="v2")


def test_two_that_write_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "m.packed"
    with PackWriter(path, SIZES) as writer:
        with pytest.raises(BlockingIOError), PackWriter(path, SIZES):
            pass
        for block in bytes_of(SIZES):
            writer.write(block)
        writer.finish("v1")
    assert read(path) == bytes_of(SIZES)


def test_a_writer_that_was_killed_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "m.packed.part").write_bytes(b"x" * 100_000)
    write(tmp_path / "m.packed")
    assert read(tmp_path / "m.packed") == bytes_of(SIZES)
    assert os.listdir(tmp_path) == ["m.packed"]


@pytest.mark.parametrize("trap", [lambda part, victim: part.symlink_to(victim), lambda part, victim: part.mkdir()])
def test_nothing_outside_is_overwritten_by_way_of_links(tmp_path: Path, trap: Callable[[Path, Path], None]) -> None:
    victim = tmp_path / "victim"
    victim.write_text("dear")
    trap(tmp_path / "m.packed.part", victim)
    with pytest.raises(OSError, match=r"symbolic links|Is a directory"):
        write(tmp_path / "m.packed")
    assert victim.read_text() == "dear"
    assert not (tmp_path / "m.packed").exists()


@pytest.fixture(scope="module")
def content() -> bytes:
    return os.urandom(SIZE)


@pytest.fixture
def path(tmp_path: Path, content: bytes) -> Path:
    file = tmp_path / "file"
    file.write_bytes(content)
    return file


def evict(path: Path) -> None:
    """Drop the file from the page cache; only pages that are on the disk leave it."""
    file = os.open(path, os.O_RDWR)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def takes_direct_reads(path: Path) -> bool:
    """Some file systems refuse them, and some have nothing but a page cache."""
    evict(path)
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return False
    try:
        return os.preadv(file, [memoryview(mmap.mmap(-1, PAGE))], 0) == PAGE
    except OSError:
        return False
    finally:
        os.close(file)


def test_what_is_not_in_the_page_cache_is_read_past_it_and_the_rest_of_a_page_is_not(
    path: Path, content: bytes
) -> None:
    if not takes_direct_reads(path):
        pytest.skip("this file system has no direct reads")
    evict(path)
    into = memoryview(mmap.mmap(-1, SIZE))
    with DirectFile(path) as file:
        file.read(0, into)
        assert file.direct_bytes == SIZE // PAGE * PAGE
    assert into[:SIZE] == content


def test_what_is_in_the_page_cache_is_copied_from_there(path: Path, content: bytes) -> None:
    path.read_bytes()
    into = memoryview(mmap.mmap(-1, SIZE))
    with DirectFile(path) as file:
        file.read(0, into)
        assert file.direct_bytes == 0
    assert into[:SIZE] == content


@pytest.mark.parametrize("offset", [0, PAGE, CHUNK_BYTES - PAGE])
@pytest.mark.parametrize("size", [0, 1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE])
def test_any_part_from_a_page_on_is_read(path: Path, content: bytes, offset: int, size: int) -> None:
    evict(path)
    into = memoryview(mmap.mmap(-1, 4 * PAGE))
    with DirectFile(path) as file:
        file.read(offset, into[:size])
    assert into[:size] == content[offset : offset + size]
    assert into[size:] == bytes(4 * PAGE - size)


def test_memory_that_does_not_begin_at_a_page_is_filled_all_the_same(path: Path, content: bytes) -> None:
    evict(path)
    into = memoryview(mmap.mmap(-1, 3 * PAGE))[7 : 7 + 2 * PAGE]
    with DirectFile(path) as file:
        file.read(PAGE, into)
    assert into == content[PAGE : 3 * PAGE]


def test_a_file_in_memory_is_read(content: bytes) -> None:
    path = Path("/dev/shm") / f"packed-file-{os.getpid()}"  # chaos counts what begins with livescale as left behind
    if not path.parent.is_dir():
        pytest.skip("there is no /dev/shm")
    try:
        path.write_bytes(content)
        into = memoryview(mmap.mmap(-1, SIZE))
        with DirectFile(path) as file:
            file.read(0, into)
        assert into[:SIZE] == content
    finally:
        path.unlink()


def test_a_file_that_was_cut_short_meanwhile_is_an_error(path: Path) -> None:
    with DirectFile(path) as file:
        os.truncate(path, PAGE)
        with pytest.raises(FileEnded, match="too early"):
            file.read(0, memoryview(mmap.mmap(-1, 2 * PAGE)))


def test_an_empty_file_has_no_pages(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with DirectFile(tmp_path / "empty") as file:
        assert file.size_bytes == 0


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="not a regular file"):
        DirectFile(tmp_path / "pipe")
