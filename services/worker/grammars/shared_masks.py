"""What the worker tells the process that computes masks of tokens, and the memory that both share for these.

A slot has the number of the mask in it, what became of it, and a bit for each token of the vocabulary.
"""

import mmap
import os
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


class SharedMasks:
    """`slots` masks for a vocabulary, in the memory of the open file `file`. One side writes a slot, then its number;
    the other one reads the number first."""

    def __init__(self, file: int, slots: int, vocab_size: int) -> None:
        words = -(-vocab_size // 32)
        kind = np.dtype(
            [("number", np.int64), ("state", np.int64), ("reason", f"S{REASON_BYTES}"), ("mask", np.int32, words)]
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

    def finish(self, slot: int, number: int, failure: str = "") -> None:
        """Say that mask `number` is in the slot, or why not."""
        self._slots["state"][slot] = MaskState.FAILED if failure else MaskState.MADE
        self._slots["reason"][slot] = failure.encode()[:REASON_BYTES]
        self._numbers[slot] = number
