"""What the worker tells the process that computes masks of tokens, and the memory that both share for these.

A slot has the number of the mask in it, what became of it, and a bit for each token of the vocabulary.
"""

import mmap
import os
from dataclasses import dataclass
from enum import IntEnum

import msgspec
import numpy as np
import numpy.typing as npt

REASON_BYTES = 240
READY = b"\x01"  # what the process says once it knows the vocabulary

Words = npt.NDArray[np.int32]


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


class SharedMasks:
    """`slots` masks for a vocabulary, in the memory of the open file `file`. One side writes a slot, then its number;
    the other one reads the number first."""

    def __init__(self, file: int, slots: int, vocab_size: int) -> None:
        words = -(-vocab_size // 32)
        kind = np.dtype(
            [
                ("number", np.int64),
                ("state", np.int64),
                ("thread", np.int64),  # 0 while nothing is computed
                ("next", np.int64),  # the number of what is
                ("begun", np.float64),
                ("seconds", np.float64),
                ("reason", f"S{REASON_BYTES}"),
                ("mask", np.int32, words),
            ]
        )
        size = kind.itemsize * slots
        if os.fstat(file).st_size < size:
            os.ftruncate(file, size)
        self._slots = np.frombuffer(mmap.mmap(file, size), kind)
        self._numbers = self._slots["number"]
        self.mask_bytes = 4 * words

    def number(self, slot: int) -> int:
        """The number of the last mask that was finished in the slot; 0 before the first."""
        return int(self._numbers[slot])

    def failure(self, slot: int) -> str | None:
        """Why the slot's mask could not be made; None where it was."""
        if self._slots["state"][slot] == MaskState.MADE:
            return None
        return bytes(self._slots["reason"][slot]).decode(errors="replace") or "it failed"

    def mask(self, slot: int) -> Words:
        """View the bits of the slot's mask, one a token."""
        words: Words = self._slots["mask"][slot]
        return words

    def seconds(self, slot: int) -> float:
        """What the slot's mask took of a processor."""
        return float(self._slots["seconds"][slot])

    def working(self, slot: int) -> Working | None:
        """What is being computed in the slot; None where nothing is."""
        number, thread, begun = (self._slots[name][slot] for name in ("next", "thread", "begun"))
        return Working(int(number), int(thread), float(begun)) if thread else None

    def begin(self, slot: int, number: int, thread: int, begun: float) -> None:
        """Say that a thread, which has used `begun` seconds of a processor, computes mask `number` of the slot."""
        self._slots["next"][slot] = number
        self._slots["begun"][slot] = begun
        self._slots["thread"][slot] = thread

    def stop(self, slot: int) -> None:
        """Say that nothing is computed in the slot."""
        self._slots["thread"][slot] = 0

    def finish(self, slot: int, number: int, seconds: float, failure: str = "") -> None:
        """Say that mask `number` is in the slot, or why not, and what it took of a processor."""
        self._slots["state"][slot] = MaskState.FAILED if failure else MaskState.MADE
        self._slots["reason"][slot] = failure.encode()[:REASON_BYTES]
        self._slots["seconds"][slot] = seconds
        self.stop(slot)
        self._numbers[slot] = number
