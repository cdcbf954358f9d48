"""Memory that other processes may map but not write to."""

import fcntl
import mmap
import os

import pytest

from livescale.shared.memory.segment import SEALS, Segment, SharedBlocks


def test_no_other_process_can_write_to_a_segment_or_change_its_size() -> None:
    blocks = SharedBlocks([5000, 10])
    blocks[0][0] = 7
    descriptor = blocks.segment.descriptor
    with pytest.raises(PermissionError):
        mmap.mmap(descriptor, 0)
    for change in (lambda: os.pwrite(descriptor, b"x", 0), lambda: os.ftruncate(descriptor, 0)):
        with pytest.raises(PermissionError):
            change()
    views = blocks.segment.views()
    assert views[0][0] == 7
    views[0][0] = 8  # goes to pages of our own
    assert blocks[0][0] == 7


def test_blocks_start_at_pages() -> None:
    assert SharedBlocks([5000, 10, 4096]).segment.spans == {0: (0, 5000), 1: (8192, 10), 2: (12288, 4096)}


def test_memory_that_is_not_sealed_or_too_small_is_refused() -> None:
    for seals, size, reason in ((0, 10, "has seals"), (SEALS, 9, "has 9 bytes")):
        descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        with pytest.raises(ValueError, match=reason):
            Segment(descriptor, {0: (0, 10)})
    with pytest.raises(ValueError, match="no memfd"):
        Segment(os.open("/dev/null", os.O_RDONLY), {})


def test_the_memory_is_free_again_when_the_last_view_is_gone() -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    blocks = SharedBlocks([5000])
    views = blocks.segment.only([0]).views()
    del blocks
    assert views[0].nbytes == 5000
    del views
    assert len(os.listdir("/proc/self/fd")) == descriptors
