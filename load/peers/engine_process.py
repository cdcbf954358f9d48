"""The loop of a process that runs one engine on one core: it answers questions from a pipe until the pipe ends.

It may run in an environment that has nothing of this project but msgspec.
"""

import ctypes
import gc
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Protocol

import msgspec

from livescale.load.peers.protocol import (
    Answer,
    AskDecode,
    AskGreedy,
    AskPrefill,
    EngineFailed,
    GreedyTokens,
    Prompts,
    Question,
    Ready,
    StartEngine,
    StepSeconds,
)

# Only the standard library is used.
from livescale.services.worker.engine.heap import keep_freed_memory

PR_SET_PDEATHSIG = 1


class Stopwatch:
    """Runs from when it is made; each mark ends a step."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._marks = [time.process_time()]

    def mark(self) -> None:
        self._marks.append(time.process_time())

    def took(self) -> StepSeconds:
        """The steps between marks, in CPU seconds, and the time that went by."""
        steps = [after - before for before, after in pairwise(self._marks)]
        return StepSeconds(steps, time.monotonic() - self._began)


class Answerer(Protocol):
    """An engine, or whatever else answers the questions of a bench."""

    ready: Ready

    def answer(self, question: Question) -> Answer:
        """Return EngineFailed for a question that this engine does not understand."""


class AskedEngine(Protocol):
    """What every engine can do; `ask_engine` turns questions into these calls."""

    def greedy(self, prompt: list[int], tokens: int) -> GreedyTokens: ...

    def prefill(self, prompts: Prompts) -> StepSeconds: ...

    def decode(self, prompts: Prompts, steps: int) -> StepSeconds: ...


def serve(descriptor: int, make: Callable[[StartEngine], Answerer]) -> None:
    """Make the engine once the pipe says of what, and answer.

    Every engine gets what a worker has: memory that is freed stays the process's, and what was imported is never looked
    through for garbage. The environment, with huge pages, is that of a worker too.
    """
    keep_freed_memory()
    gc.freeze()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with Connection(descriptor) as pipe, suppress(EOFError, KeyboardInterrupt):
        start = msgspec.msgpack.decode(pipe.recv_bytes(), type=StartEngine)
        # Before threads are started: they inherit it.
        os.sched_setaffinity(0, [start.core])
        member = make(start)
        pipe.send_bytes(msgspec.msgpack.encode(member.ready))
        while data := pipe.recv_bytes():
            answer = member.answer(msgspec.msgpack.decode(data, type=Question))
            pipe.send_bytes(msgspec.msgpack.encode(answer))


def ask_engine(engine: AskedEngine, question: Question) -> Answer:
    match question:
        case AskGreedy(prompt, tokens):
            return engine.greedy(prompt, tokens)
        case AskPrefill(prompts):
            return engine.prefill(prompts)
        case AskDecode(prompts, steps):
            return engine.decode(prompts, steps)
        case _:
            return EngineFailed(f"{type(engine).__name__} does not answer {type(question).__name__}")
