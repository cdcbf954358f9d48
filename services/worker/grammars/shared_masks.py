"""What the worker tells the process that computes masks of tokens, and the memory that both share for these.

A slot has the number of the mask in it, what became of it, and a bit for each token of the vocabulary. The process has
no numpy: to import that would be half of its start.
"""

import mmap
import os
from ctypes import Structure, addressof, alignment, c_char, c_double, c_int64, sizeof
from dataclasses import dataclass
from enum import IntEnum

import msgspec

REASON_BYTES = 240
READY = b"\x01"  # what the process says once it knows the vocabulary


class LearnTokens(msgspec.Struct, frozen=True, array_like=True):
    """The vocabulary: a compressed tokenizer.json, the model's number of tokens, and those that end a text."""

    tokenizer: bytes
    vocab_size: int
    ends: list[int]
    slots: int
    file: int


class AskMask(msgspec.Struct, frozen=True, array_like=True):
    """Compute mask `number` of a slot. With a `grammar` it is that after `tokens`, otherwise after these more than
    the last one."""

    slot: int
    number: int
    tokens: list[int]
    grammar: str | None = None


class MaskState(IntEnum):
    """Whether a slot's mask was made, or why it is not there."""

    MADE = 0
    FAILED = 1


@dataclass(frozen=True)
class Working:
    """The mask that is being computed in a slot, by which thread, and what that had used of a processor before."""

    number: int
    thread: int
    begun: float


class _Slot(Structure):
    """What is in front of each mask."""

    _fields_ = (
        ("number", c_int64),
        ("state", c_int64),
        ("thread", c_int64),  # 0 while nothing is computed
        ("next", c_int64),  # the number of what is
        ("begun", c_double),
        ("seconds", c_double),
        ("reason", c_char * REASON_BYTES),
    )


class SharedMasks:
    """`slots` masks for a vocabulary, in the memory of the open file `file`. One side writes a slot, then its number;
    the other one reads the number first."""

    def __init__(self, file: int, slots: int, vocab_size: int) -> None:
        self.mask_bytes = 4 * -(-vocab_size // 32)
        size = sizeof(_Slot) + -(-self.mask_bytes // alignment(_Slot)) * alignment(_Slot)
        if os.fstat(file).st_size < size * slots:
            os.ftruncate(file, size * slots)
        memory = mmap.mmap(file, size * slots)
        self._slots = [_Slot.from_buffer(memory, size * slot) for slot in range(slots)]
        starts = (size * slot + sizeof(_Slot) for slot in range(slots))
        self._masks = [memoryview(memory)[start : start + self.mask_bytes] for start in starts]

    def number(self, slot: int) -> int:
        """The number of the last mask that was finished in the slot; 0 before the first."""
        return int(self._slots[slot].number)

    def failure(self, slot: int) -> str | None:
        """Why the slot's mask could not be made; None where it was."""
        if self._slots[slot].state == MaskState.MADE:
            return None
        reason: bytes = self._slots[slot].reason
        return reason.decode(errors="replace") or "it failed"

    def mask(self, slot: int) -> memoryview:
        """View the bits of the slot's mask, one a token, in words of four bytes."""
        return self._masks[slot]

    def address(self, slot: int) -> int:
        """Where the slot's mask begins in the memory of this process."""
        return addressof(self._slots[slot]) + sizeof(_Slot)

    def seconds(self, slot: int) -> float:
        """What the slot's mask took of a processor."""
        return float(self._slots[slot].seconds)

    def working(self, slot: int) -> Working | None:
        """What is being computed in the slot; None where nothing is."""
        of = self._slots[slot]
        number, thread, begun = of.next, of.thread, of.begun
        return Working(number, thread, begun) if thread else None

    def begin(self, slot: int, number: int, thread: int, begun: float) -> None:
        """Say that a thread, which has used `begun` seconds of a processor, computes mask `number` of the slot."""
        of = self._slots[slot]
        of.next, of.begun = number, begun
        of.thread = thread

    def stop(self, slot: int) -> None:
        """Say that nothing is computed in the slot."""
        self._slots[slot].thread = 0

    def finish(self, slot: int, number: int, seconds: float, failure: str = "") -> None:
        """Say that mask `number` is in the slot, or why not, and what it took of a processor."""
        of = self._slots[slot]
        of.state = MaskState.FAILED if failure else MaskState.MADE
        of.reason = failure.encode()[:REASON_BYTES]
        of.seconds = seconds
        self.stop(slot)
        of.number = number
