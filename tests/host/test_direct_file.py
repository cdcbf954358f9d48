import mmap
import os
from pathlib import Path

import pytest

from livescale.services.host.direct_file import CHUNK_BYTES, PAGE, DirectFile, FileEnded
from livescale.shared.model.checkpoint import CheckpointError

SIZE = 2 * CHUNK_BYTES - 3 * PAGE + 100  # two chunks


@pytest.fixture(scope="module")
def content() -> bytes:
    return os.urandom(SIZE)


@pytest.fixture
def path(tmp_path: Path, content: bytes) -> Path:
    file = tmp_path / "file"
    file.write_bytes(content)
    return file


def evict(path: Path) -> None:
    """Only what is on the disk leaves the page cache."""
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
    path = Path("/dev/shm") / f"livescale-test-{os.getpid()}"
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
