"""The arena: placing, refusing, starting over; and memory that other processes may map but not write to."""

import fcntl
import gc
import mmap
import os
import resource
import subprocess
import sys
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from livescale.services.host.disk import ThreadDisk, allocate
from livescale.services.worker.engine.kv_store import allocate_host_kv_memory
from livescale.shared.memory.arena import ALIGNMENT, SEALS, Arena, ArenaFull, PinnedMap, Segment, SharedBlocks

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


def locked_bytes() -> int:
    with open("/proc/self/status") as status:
        (line,) = [line for line in status if line.startswith("VmLck:")]
    return int(line.split()[1]) * 1024


def test_its_memory_is_locked_until_it_is_unmapped() -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if os.geteuid() and 0 <= limit < 2 * MIB:
        pytest.skip("this user may not lock 2 MiB")
    before = locked_bytes()
    arena = Arena(MIB)
    assert locked_bytes() - before == MIB
    arena.close()
    assert locked_bytes() == before


# A user who may lock a page makes an arena of 1 MiB, and writes into it.
WITHOUT_THE_RIGHT = """
import os, resource
from structlog.testing import capture_logs
from livescale.shared.memory.arena import Arena
resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 4096))
if os.geteuid() == 0:
    os.setuid(65534)
with capture_logs() as lines:
    (view,) = Arena(1 << 20).place([5])
view[:] = b"works"
print([line["event"] for line in lines], bytes(view))
"""


def test_where_it_may_not_be_locked_it_works_as_it_is_and_that_is_logged() -> None:
    command = [sys.executable, "-c", WITHOUT_THE_RIGHT]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert said.stdout == "['memory_not_locked'] b'works'\n"


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


SIZES = [5000, 10]
PAGE = 4096


@dataclass
class Runtime:
    """What is registered, by address; and whether it still was readable when it was let go."""

    status: int = 0
    registered: dict[int, int] = field(default_factory=dict)
    let_go: list[int] = field(default_factory=list)

    def cudaHostRegister(self, address: int, size_bytes: int, flags: int) -> int:
        self.registered[address] = size_bytes
        return self.status

    def cudaHostUnregister(self, address: int) -> int:
        self.let_go.append(self.registered.pop(address))
        return 0


@pytest.mark.parametrize("make", [allocate, SharedBlocks])
def test_memory_is_pinned_as_a_whole_and_let_go_with_its_last_view(make: type[SharedBlocks]) -> None:
    runtime = Runtime()
    blocks = make(SIZES, runtime)
    (size_bytes,) = runtime.registered.values()
    assert size_bytes >= sum(SIZES)
    assert address_of(blocks[0]) in runtime.registered
    last = blocks[1]
    del blocks
    gc.collect()
    assert runtime.registered
    del last
    gc.collect()
    assert (runtime.registered, runtime.let_go) == ({}, [size_bytes])


def test_what_cannot_be_pinned_works_as_it_is_and_is_said() -> None:
    runtime = Runtime(status=2)
    with capture_logs() as lines:
        memory = PinnedMap(-1, mmap.PAGESIZE)
        memory.pin(runtime)
    assert [(line["event"], line["status"]) for line in lines] == [("memory_not_pinned", 2)]
    memory[:5] = b"works"
    del memory
    assert runtime.let_go == []


def test_without_cuda_nothing_is_pinned() -> None:
    (view,) = Arena(mmap.PAGESIZE).place([7])
    view[:] = b"touched"
    assert bytes(view) == b"touched"


async def test_a_disk_asks_cuda_for_its_runtime_only_where_memory_is_to_be_pinned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = Runtime()
    monkeypatch.setattr("torch.cuda.cudart", lambda: runtime)
    for pinned, shared in ((False, True), (True, True), (True, False)):
        disk = ThreadDisk(shared=shared, pinned=pinned)
        blocks = await disk.allocate(SIZES)
        assert len(runtime.registered) == pinned
        del blocks
        await disk.close()
        gc.collect()
        assert runtime.registered == {}


def test_beside_a_gpu_host_memory_for_kv_is_pinned_and_no_larger_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()
    monkeypatch.setattr("torch.cuda.cudart", lambda: runtime)
    memory = allocate_host_kv_memory(5 * PAGE, "cuda:0")
    assert runtime.registered == {memory.data_ptr(): 5 * PAGE}
    assert len(allocate_host_kv_memory(0, "cuda:0")) == 0
    assert not memory.any()
    del memory
    gc.collect()
    assert runtime.let_go == [5 * PAGE]


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
