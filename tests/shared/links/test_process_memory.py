"""The memory of another process is copied piece by piece, and only while it is still that process's."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from livescale.shared.links import process_memory
from livescale.shared.links.cma import address_of
from livescale.shared.links.process_memory import NOWHERE, ProcessMark, ProcessMemory, own_mark

PIECE, PIECES = 4096, 5
DATA = bytes(number % 251 for number in range(PIECE * PIECES - 7))

OTHER = f"""
import sys
from livescale.shared.links.cma import address_of
from livescale.shared.links.process_memory import own_mark
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
