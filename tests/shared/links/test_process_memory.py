"""The memory of another process is copied piece by piece in a thread, and only while it is still that process's; and
what is said where the kernel does not let a process read others' memory.
"""

import asyncio
import ctypes
import gc
import mmap
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from livescale.shared.links import process_memory
from livescale.shared.links.process_memory import NOWHERE, CopyThread, ProcessMark, ProcessMemory, address_of, own_mark

# Seccomp as a container has it, in the kernel's own filter language. 310 is process_vm_readv of x86-64.
FILTER = """
import ctypes, struct
from livescale.shared.links.process_memory import why_refused
assert why_refused() is None
libc = ctypes.CDLL(None, use_errno=True)
code = struct.pack("HBBI", 0x20, 0, 0, 0) + struct.pack("HBBI", 0x15, 0, 1, 310)
code += struct.pack("HBBI", 0x06, 0, 0, 0x00050001) + struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
words = ctypes.create_string_buffer(code)
program = struct.pack("HxxxxxxP", 4, ctypes.addressof(words))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.c_char_p(program)) == 0
print(why_refused())
"""

PIECE, PIECES = 4096, 5
DATA = bytes(number % 251 for number in range(PIECE * PIECES - 7))

OTHER = f"""
import sys
from livescale.shared.links.process_memory import address_of, own_mark
data = memoryview(bytearray(number % 251 for number in range({len(DATA)})))
print(own_mark().pack().hex(), address_of(data), flush=True)
sys.stdin.read()
"""


@dataclass
class Other:
    """Another process, with DATA in its memory."""

    process: "subprocess.Popen[str]"
    mark: ProcessMark
    address: int

    @property
    def memory(self) -> ProcessMemory:
        found = ProcessMemory.of(own_mark(), self.mark)
        assert found is not None
        return found

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def other() -> Iterator[Other]:
    command = [sys.executable, "-c", OTHER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        mark, address = process.stdout.readline().split()
        yield Other(process, ProcessMark.unpack(bytes.fromhex(mark)), int(address))
        process.kill()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_memory, "PIECE_BYTES", PIECE)


def never() -> bool:
    return False


def test_another_processs_memory_is_copied_and_each_piece_is_shown_once_in_order(other: Other) -> None:
    got, pieces = bytearray(len(DATA)), list[bytes]()
    assert other.memory.copy(other.address, memoryview(got), lambda piece: pieces.append(bytes(piece)), never)
    assert got == DATA
    assert b"".join(pieces) == DATA
    assert list(map(len, pieces)) == [PIECE] * 4 + [PIECE - 7]


def test_who_looks_at_no_pieces_gets_all_bytes_too(other: Other) -> None:
    got = bytearray(len(DATA))
    assert other.memory.copy(other.address, memoryview(got), None, never)
    assert got == DATA


def test_of_a_process_that_ended_nothing_is_copied(other: Other) -> None:
    other.end()
    got = bytearray(len(DATA))
    assert not other.memory.copy(other.address, memoryview(got), None, never)
    assert got == bytes(len(DATA))


def test_a_process_that_has_anothers_number_is_not_taken_for_it(other: Other) -> None:
    memory, got = ProcessMemory(other.mark._replace(word=bytes(16))), bytearray(len(DATA))
    assert not memory.copy(other.address, memoryview(got), None, never)
    assert got == bytes(len(DATA))


@pytest.mark.parametrize("after", [1, PIECES])
def test_a_process_that_dies_in_mid_copy_is_an_error(other: Other, after: int) -> None:
    pieces = list[int]()

    def kill_at_last(piece: memoryview) -> None:
        pieces.append(piece.nbytes)
        if len(pieces) == after:
            other.end()

    with pytest.raises(ProcessLookupError):
        other.memory.copy(other.address, memoryview(bytearray(len(DATA))), kill_at_last, never)
    assert len(pieces) == after


def test_a_copy_that_nobody_needs_any_more_ends_at_the_next_piece(other: Other) -> None:
    pieces = list[int]()
    with pytest.raises(OSError, match="canceled"):
        other.memory.copy(
            other.address, memoryview(bytearray(len(DATA))), lambda piece: pieces.append(1), lambda: len(pieces) == 2
        )
    assert len(pieces) == 2


def test_memory_is_read_among_processes_of_one_machine_only() -> None:
    mine = own_mark()
    assert ProcessMark.unpack(mine.pack()) == mine
    assert mine.pid == os.getpid()
    assert ProcessMemory.of(mine, mine._replace(pid=1)) is not None
    assert ProcessMemory.of(mine, mine._replace(machine=b"another.")) is None
    assert ProcessMemory.of(NOWHERE, NOWHERE) is None


def test_a_process_that_does_not_know_its_machine_is_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process_memory, "BOOT", tmp_path / "missing")
    assert own_mark() == NOWHERE


def test_an_address_of_this_process_is_read_as_any_other() -> None:
    data, got = memoryview(bytearray(DATA)), bytearray(len(DATA))
    assert ProcessMemory(own_mark()).copy(address_of(data), memoryview(got), None, never)
    assert got == DATA


def test_memory_can_be_read_here() -> None:
    assert process_memory.read_error(os.getpid()) is None


def test_memory_is_read_where_it_lies_and_only_where_it_is_mapped() -> None:
    there, here = memoryview(bytearray(b"some bytes")), memoryview(bytearray(10))
    process_memory.read(os.getpid(), address_of(there[5:]), here[:5])
    assert bytes(here[:5]) == b"bytes"
    with pytest.raises(OSError, match="Bad address"):
        process_memory.read(os.getpid(), 0, here)


def test_what_is_mapped_in_part_is_an_error() -> None:
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    address = address_of(memoryview(pages))
    libc = ctypes.CDLL(None)
    assert libc.mprotect(ctypes.c_void_p(address + mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    with pytest.raises(OSError, match="Bad address"):
        process_memory.read(os.getpid(), address, memoryview(bytearray(2 * mmap.PAGESIZE)))


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls are those of x86-64")
def test_a_seccomp_filter_is_told_with_its_remedy() -> None:
    said = subprocess.run(
        [sys.executable, "-c", FILTER], check=True, capture_output=True, text=True, timeout=240
    ).stdout
    assert "Operation not permitted: a seccomp filter" in said
    assert "--cap-add SYS_PTRACE" in said


@pytest.mark.parametrize(("scope", "right", "refused"), [("1", False, False), ("2", False, True), ("2", True, False)])
def test_yama_refuses_from_two_on_unless_there_is_the_capability(
    scope: str, right: bool, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scope").write_text(f"{scope}\n")
    monkeypatch.setattr(process_memory, "YAMA", tmp_path / "scope")
    monkeypatch.setattr(process_memory, "has_right", lambda number: right)
    reason = process_memory.why_refused()
    assert ("ptrace_scope is 2" in (reason or "")) == refused


def test_a_capability_is_found_as_the_kernel_tells_it() -> None:
    status = Path("/proc/self/status").read_text()
    held = int(status.split("CapEff:")[1].split()[0], 16)
    assert [process_memory.has_right(number) for number in range(40)] == [
        bool(held >> number & 1) for number in range(40)
    ]


@pytest.fixture
async def copies() -> AsyncIterator[CopyThread]:
    copies = CopyThread(asyncio.get_running_loop())
    yield copies
    copies.close()


async def test_copies_are_made_in_order_in_one_thread_that_is_not_the_loops(copies: CopyThread) -> None:
    made = list[tuple[int, int]]()

    def copy(number: int) -> bool:
        made.append((number, threading.get_ident()))
        return number % 2 == 0

    begun = [copies.begin(partial(copy, number)) for number in range(4)]
    assert await asyncio.gather(*begun) == [True, False, True, False]
    assert [number for number, _ in made] == [0, 1, 2, 3]
    assert len({thread for _, thread in made} | {threading.get_ident()}) == 2


async def test_no_thread_is_there_before_the_first_copy_nor_after_the_end() -> None:
    before = threading.active_count()
    copies = CopyThread(asyncio.get_running_loop())
    assert threading.active_count() == before
    assert await copies.begin(lambda: True)
    assert threading.active_count() == before + 1
    copies.close()
    copies.close()
    assert threading.active_count() == before


async def test_what_goes_wrong_is_raised_where_it_is_waited_for_and_the_next_copy_is_made(copies: CopyThread) -> None:
    def fail() -> bool:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await copies.begin(fail)
    assert await copies.begin(lambda: True)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_copy_that_was_given_up_goes_on_until_it_has_settled(copies: CopyThread, fails: bool) -> None:
    unheard = list[dict[str, object]]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unheard.append(context))
    go_on, over = threading.Event(), threading.Event()

    def copy() -> bool:
        go_on.wait(60)
        over.set()
        if fails:
            raise OSError("gone")
        return True

    copies.begin(copy).cancel()
    settling = asyncio.create_task(copies.settle())
    await asyncio.sleep(0)
    assert not over.is_set()
    go_on.set()
    await settling
    assert over.is_set()
    gc.collect()
    assert not unheard


async def test_what_a_copy_held_is_let_go_with_it(copies: CopyThread) -> None:
    class Held:
        def copy(self) -> bool:
            return True

    held = Held()
    gone = weakref.ref(held)
    assert await copies.begin(held.copy)
    del held
    await copies.settle()
    assert gone() is None


async def test_what_was_begun_is_done_before_the_thread_ends() -> None:
    copies, made = CopyThread(asyncio.get_running_loop()), list[int]()

    def copy(number: int) -> bool:
        made.append(number)
        return True

    for number in range(3):
        copies.begin(partial(copy, number))
    copies.close()
    assert made == [0, 1, 2]
