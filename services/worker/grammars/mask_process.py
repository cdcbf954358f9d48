"""The process that computes which tokens grammars permit, for one worker and one model.

It has an interpreter and memory of its own: neither its work nor its death holds up a step. Work comes on stdin, each
piece after its length, first the vocabulary. Masks go into shared memory. It ends when stdin does.
"""

import os
import signal
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

import msgspec
from llguidance import LLMatcher, LLTokenizer

from livescale.services.worker.grammars.shared_masks import READY, AskMask, LearnTokens, SharedMasks
from livescale.shared.model.grammar import failure_of, grammar_limits
from livescale.shared.process.bounded_answers import LENGTH_BYTES, bound_memory

MEMORY_BYTES = 2 << 30  # in addition to what an idle process has
SLOW_SECONDS = 0.002  # a matcher whose last mask took longer is computed apart from the others
KEPT_GRAMMARS = 64
LOW_PRIORITY = 10


class Matchers:
    """The matcher of each slot. Masks of slow ones are computed on a thread of their own: others do not wait."""

    def __init__(self, learn: LearnTokens, tokenizer: LLTokenizer) -> None:
        self._masks = SharedMasks(learn.file, learn.slots, learn.vocab_size)
        self._tokenizer = tokenizer
        self._matchers: dict[int, LLMatcher] = {}
        self._seconds: dict[int, float] = {}
        self._compiled: dict[str, LLMatcher] = {}
        self._quick, self._slow = ThreadPoolExecutor(1, "quick"), ThreadPoolExecutor(1, "slow")

    def begin(self, ask: AskMask) -> None:
        """Compute a mask soon. A grammar that is compiled first counts as slow."""
        is_slow = ask.grammar is not None or self._seconds.get(ask.slot, 0.0) > SLOW_SECONDS
        (self._slow if is_slow else self._quick).submit(self._compute, ask)

    def _compute(self, ask: AskMask) -> None:
        begun = time.thread_time()
        self._masks.begin(ask.slot, ask.number, threading.get_native_id(), begun)
        try:
            failure = self._failure(ask)
        except Exception as error:  # noqa: BLE001 whatever it is, it is this request's
            failure = f"{type(error).__name__}: {error}"
        seconds = self._seconds[ask.slot] = time.thread_time() - begun
        self._masks.finish(ask.slot, ask.number, seconds, failure)

    def _failure(self, ask: AskMask) -> str:
        """Compute the mask, and return why that failed, or nothing."""
        if ask.grammar is not None:
            self._matchers[ask.slot] = self._start(ask.grammar)
        matcher = self._matchers[ask.slot]
        if not matcher.is_error():
            matcher.consume_tokens(ask.tokens)
        if not matcher.is_error():
            matcher.unsafe_compute_mask_ptr(self._masks.address(ask.slot), self._masks.mask_bytes)
            if not matcher.is_error() and not bytes(self._masks.mask(ask.slot)).strip(b"\0"):
                return "no token can follow"
        return failure_of(matcher) if matcher.is_error() else ""

    def _start(self, grammar: str) -> LLMatcher:
        """A matcher at the grammar's beginning. Only the slow thread compiles."""
        compiled = self._compiled.pop(grammar, None)
        if compiled is None:
            compiled = LLMatcher(self._tokenizer, grammar, log_level=0, limits=grammar_limits())
        self._compiled[grammar] = compiled
        if len(self._compiled) > KEPT_GRAMMARS:
            del self._compiled[next(iter(self._compiled))]
        return compiled.deep_copy()


def learn_tokens(learn: LearnTokens) -> LLTokenizer:
    """The tokens as a trie. It takes a second of a core for 128,000, at a low priority."""
    made: list[LLTokenizer] = []

    def work() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)
        text = zlib.decompress(learn.tokenizer).decode()
        made.append(LLTokenizer(text, n_vocab=learn.vocab_size, eos_token=learn.ends))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return made[0]


def main(work: BinaryIO, answers: BinaryIO) -> None:
    """Compute the masks that `work` asks for, until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the worker, which ends this process
    bound_memory(MEMORY_BYTES)
    learn = msgspec.msgpack.decode(_read(work), type=LearnTokens)
    matchers = Matchers(learn, learn_tokens(learn))
    answers.write(READY)
    answers.flush()
    decoder = msgspec.msgpack.Decoder(list[AskMask])
    while data := _read(work):
        for ask in decoder.decode(data):
            matchers.begin(ask)
    os._exit(0)  # nobody waits for what is still computed


def _read(work: BinaryIO) -> bytes:
    return work.read(int.from_bytes(work.read(LENGTH_BYTES)))


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
