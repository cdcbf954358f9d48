"""Stretches of a device's memory, with the CPU as the device: its memory is a tensor just the same."""

import ctypes
from typing import Any

import pytest
import torch
import xxhash

from livescale.shared.links.contract import checksum
from livescale.shared.memory import device_arena
from livescale.shared.memory.arena import ALIGNMENT, ArenaFull
from livescale.shared.memory.device_arena import DeviceArena

MIB = 1 << 20


def test_stretches_are_aligned_and_do_not_overlap() -> None:
    first, second = DeviceArena(MIB, "cpu").place([5000, 70])
    first.tensor.fill_(1)
    second.tensor.fill_(2)
    assert (first.nbytes, second.nbytes) == (5000, 70)
    assert first.tensor.tolist() == [1] * 5000
    assert second.tensor.data_ptr() - first.tensor.data_ptr() == 2 * ALIGNMENT


def test_what_does_not_fit_is_refused_and_after_clear_the_same_memory_is_placed_again() -> None:
    arena = DeviceArena(2 * ALIGNMENT, "cpu")
    (before,) = arena.place([ALIGNMENT + 1])
    with pytest.raises(ArenaFull, match="needs 4096 bytes and the arena has 0 of 8192 left"):
        arena.place([1])
    arena.clear()
    (after,) = arena.place([7])
    assert after.tensor.data_ptr() == before.tensor.data_ptr()


def test_a_slice_is_the_same_memory_and_says_where_it_is() -> None:
    (block,) = DeviceArena(MIB, "cpu").place([100])
    block.tensor.copy_(torch.arange(100))
    part = block[10:30][5:]
    at: Any = part.__cuda_array_interface__["data"]
    assert part.__cuda_array_interface__["shape"] == (15,)
    assert ctypes.string_at(at[0], 15) == bytes(range(15, 30))
    assert not at[1]
    assert block[90:200].nbytes == 10
    assert block[200:300].nbytes == 0


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 5_003])
def test_the_checksum_is_that_of_the_bytes_however_many_pieces_they_take(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_arena, "BOUNCE_BYTES", 1000)
    _, block = DeviceArena(MIB, "cpu").place([17, size])
    data = torch.randint(256, (size,), dtype=torch.uint8)
    block.tensor.copy_(data)
    there = bytes(data.tolist())
    assert checksum(block) == xxhash.xxh3_64_intdigest(there) == checksum(memoryview(there))


def test_a_device_that_has_no_such_memory_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*shape: int, **options: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(MemoryError, match="cuda:0 has no 1048576 bytes for parameters"):
        DeviceArena(MIB, "cuda:0")
