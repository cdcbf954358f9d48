"""Whether the kernel lets a process read others' memory, and what is said where it does not."""

import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from livescale.shared.links import cma

# Seccomp as a container has it, in the kernel's own filter language. 310 is process_vm_readv of x86-64.
FILTER = """
import ctypes, struct
from livescale.shared.links.cma import why_refused
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


def test_memory_can_be_read_here() -> None:
    assert cma.read_error(os.getpid()) is None


def test_memory_is_read_where_it_lies_and_only_where_it_is_mapped() -> None:
    there, here = memoryview(bytearray(b"some bytes")), memoryview(bytearray(10))
    cma.read(os.getpid(), cma.address_of(there[5:]), here[:5])
    assert bytes(here[:5]) == b"bytes"
    with pytest.raises(OSError, match="Bad address"):
        cma.read(os.getpid(), 0, here)


def test_what_is_mapped_in_part_is_an_error() -> None:
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    address = cma.address_of(memoryview(pages))
    libc = ctypes.CDLL(None)
    assert libc.mprotect(ctypes.c_void_p(address + mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    with pytest.raises(OSError, match="Bad address"):
        cma.read(os.getpid(), address, memoryview(bytearray(2 * mmap.PAGESIZE)))


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
    monkeypatch.setattr(cma, "YAMA", tmp_path / "scope")
    monkeypatch.setattr(cma, "has_right", lambda number: right)
    reason = cma.why_refused()
    assert ("ptrace_scope is 2" in (reason or "")) == refused


def test_a_capability_is_found_as_the_kernel_tells_it() -> None:
    status = Path("/proc/self/status").read_text()
    held = int(status.split("CapEff:")[1].split()[0], 16)
    assert [cma.has_right(number) for number in range(40)] == [bool(held >> number & 1) for number in range(40)]
