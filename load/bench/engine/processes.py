"""Starts the processes of `livescale bench engine`: one for each engine, all on one core, asked one at a time."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen, TimeoutExpired
from typing import IO, Literal, TypeVar

import msgspec

from livescale.load.peers.protocol import Answer, EngineFailed, Question, Ready, StartEngine
from livescale.services.supervisor.commands import WORKER_ENV
from livescale.shared.messages.parameters import KvCacheDType

T = TypeVar("T")

ROOT = Path(__file__).parents[4]
PEERS = Path(".peers")  # the environment that `make bench-peers` makes
START_SECONDS = 600.0  # vLLM compiles the first time
ANSWER_SECONDS = 300.0
LAST_WORDS_SECONDS = 10.0


class EngineProcessFailed(Exception):
    """A process ended, or did not answer, or says that it cannot."""


@dataclass(frozen=True)
class Program:
    """How an engine is started. `package`: of the peers' environment, where it is no part of this one.
    `kv_cache_dtype`: how this engine keeps keys and values."""

    name: str
    module: str
    package: str | None = None
    dtype: Literal["bfloat16", "float32", "float64"] = "bfloat16"
    kv_cache_dtype: KvCacheDType = "auto"

    @property
    def is_installed(self) -> bool:
        return self.package is None or any(PEERS.glob(f"lib/python*/site-packages/{self.package}"))

    @property
    def python(self) -> str:
        return sys.executable if self.package is None else str((PEERS / "bin" / "python").absolute())


class EngineProcess:
    """A process that runs one engine and answers questions over a pipe."""

    def __init__(self, program: Program, checkpoint: Path, core: int, kernels: str, log: IO[str]) -> None:
        self.name = program.name
        ours, theirs = Pipe()
        began = time.monotonic()
        self._process = Popen(
            [program.python, "-c", f"from {program.module} import main; main({theirs.fileno()})"],
            pass_fds=[theirs.fileno()],
            stdin=DEVNULL,
            stdout=log,
            stderr=STDOUT,
            # A worker's, for all: huge pages, and one thread.
            env={**os.environ, "PYTHONPATH": str(ROOT), **WORKER_ENV},
        )
        theirs.close()
        self._pipe = ours
        directory, kept = str(checkpoint.absolute()), program.kv_cache_dtype
        start = StartEngine(directory, core, began, program.dtype, kernels, kept)
        ours.send_bytes(msgspec.msgpack.encode(start))

    def ask(self, question: Question, kind: type[T]) -> T:
        """Return the answer to a question. Raises EngineProcessFailed if the process ends or takes too long."""
        try:
            self._pipe.send_bytes(msgspec.msgpack.encode(question))
        except OSError:
            raise self._ended() from None
        return self._answer(kind, ANSWER_SECONDS)

    def ready(self) -> Ready:
        """Return once it can be asked. Raises EngineProcessFailed."""
        return self._answer(Ready, START_SECONDS)

    def _answer(self, kind: type[T], seconds: float) -> T:
        if not self._pipe.poll(seconds):
            raise EngineProcessFailed(f"{self.name} did not answer within {seconds:g} s")
        try:
            answer = msgspec.msgpack.decode(self._pipe.recv_bytes(), type=Answer)
        except (EOFError, OSError):
            raise self._ended() from None
        if isinstance(answer, EngineFailed):
            raise EngineProcessFailed(f"{self.name}: {answer.reason}")
        assert isinstance(answer, kind)
        return answer

    def _ended(self) -> EngineProcessFailed:
        """It has closed its pipe, and says why in the log."""
        with suppress(TimeoutExpired):
            self._process.wait(LAST_WORDS_SECONDS)
        return EngineProcessFailed(f"{self.name} ended")

    def end(self) -> None:
        """Kill the process at once: it keeps nothing."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()


class EngineProcesses:
    """Those of one checkpoint. The core is the last that this process may use."""

    def __init__(self, checkpoint: Path, log: IO[str], kernels: str) -> None:
        self._checkpoint = checkpoint
        self._kernels = kernels
        self._log = log
        self._core = max(os.sched_getaffinity(0))
        self._members: list[EngineProcess] = []

    def start(self, program: Program) -> tuple[EngineProcess, Ready]:
        """Return when it can be asked. Raises EngineProcessFailed."""
        member = EngineProcess(program, self._checkpoint, self._core, self._kernels, self._log)
        self._members.append(member)
        return member, member.ready()

    @contextmanager
    def started(self, program: Program) -> Iterator[EngineProcess]:
        """A process that runs for as long as the block of code. Raises EngineProcessFailed."""
        member, _ = self.start(program)
        try:
            yield member
        finally:
            member.end()
            self._members.remove(member)

    def end(self) -> None:
        for member in self._members:
            member.end()
        self._members.clear()


@contextmanager
def engine_processes(checkpoint: Path, log: IO[str], kernels: str = "auto") -> Iterator[EngineProcesses]:
    """`kernels` as `--kernels` of a worker has them."""
    members = EngineProcesses(checkpoint, log, kernels)
    try:
        yield members
    finally:
        members.end()
