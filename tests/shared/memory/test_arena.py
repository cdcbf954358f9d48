"""The arena: placing, refusing, starting over."""

import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.shared.memory.arena import ALIGNMENT, Arena, ArenaFull

MIB = 1 << 20


def address_of(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


@given(st.lists(st.integers(1, 20_000), max_size=10))
def test_blocks_are_aligned_writable_and_do_not_overlap(sizes: list[int]) -> None:
    arena = Arena(MIB)
    views = arena.place(sizes)
    for number, view in enumerate(views):
        assert not view.readonly
        assert address_of(view) % ALIGNMENT == 0
        view[:] = bytes([number + 1]) * view.nbytes
    assert [view.nbytes for view in views] == sizes
    assert all(bytes(view) == bytes([number + 1]) * view.nbytes for number, view in enumerate(views))
    arena.close()


def test_a_model_that_does_not_fit_is_refused_with_both_sizes_and_nothing_is_placed() -> None:
    arena = Arena(10 * ALIGNMENT)
    arena.place([ALIGNMENT])
    with pytest.raises(ArenaFull, match=f"needs {10 * ALIGNMENT} bytes and the arena has {9 * ALIGNMENT} of"):
        arena.place([9 * ALIGNMENT, 1])
    assert arena.used_bytes == ALIGNMENT
    assert len(arena.place([9 * ALIGNMENT])) == 1
    arena.close()


def test_after_clear_the_same_memory_is_placed_again() -> None:
    arena = Arena(MIB)
    first = address_of(arena.place([5000])[0])
    arena.clear()
    assert address_of(arena.place([7000])[0]) == first
    arena.close()


def test_its_memory_is_resident_from_the_start() -> None:
    def resident_bytes() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * mmap.PAGESIZE

    before = resident_bytes()
    arena = Arena(64 * MIB)
    assert resident_bytes() - before > 60 * MIB
    arena.close()


def test_a_kernel_that_cannot_populate_still_gets_every_page_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("livescale.shared.memory.arena.MADV_POPULATE_WRITE", 9999)
    arena = Arena(MIB)
    assert arena.place([MIB])[0].nbytes == MIB
    arena.close()


def test_views_in_use_survive_close() -> None:
    arena = Arena(MIB)
    view = arena.place([4])[0]
    view[:] = b"kept"
    arena.close()
    assert bytes(view) == b"kept"
