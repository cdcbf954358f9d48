"""Masks of the tokens that grammars permit: begun when a step begins, taken when it has logits.

They are computed by a process beside the worker. What it needs to know of a request follows from the request's grammar
and tokens alone: any worker goes on with it.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import structlog

from livescale.services.worker.grammars.shared_masks import READY, AskMask, LearnTokens, SharedMasks, Words
from livescale.services.worker.scheduling.batch import ScheduledChunk
from livescale.shared.process.bounded_process import bare_environment, framed

SLOTS = 512
GRACE_SECONDS = 0.002  # that a step waits at most for all of its masks
MOST_LATE_SECONDS = 1.0  # of one request
DEATHS = 2  # of the process, that one request may be beside
PAUSE_SECONDS = 2e-5
START_SECONDS = 60.0
RESTART_SECONDS = 30.0  # that requests wait for a process that died
TRY_AGAIN_SECONDS = 1.0
NO_PROCESS = "what computes what grammars permit does not run"
MODULE = "livescale.services.worker.grammars.mask_process"

log = structlog.get_logger()


class MasksFailed(RuntimeError):
    """No masks can be computed; the message says why."""


@dataclass(frozen=True)
class Vocabulary:
    """A model's tokens: its compressed tokenizer.json, and those that end a text."""

    tokenizer: bytes
    ends: tuple[int, ...]


@dataclass(frozen=True)
class StepMasks:
    """What may be chosen for a step's samplings, by their places: masks, and what has none yet or never, and why."""

    masks: Mapping[int, Words] = field(default_factory=dict)
    withheld: Mapping[int, str] = field(default_factory=dict)


NO_MASKS = StepMasks()


def without_masks(chunks: Iterable[ScheduledChunk]) -> StepMasks:
    """What may be chosen while there are no masks: nothing where there is a grammar."""
    samplings = (chunk.sampling for chunk in chunks if chunk.sampling is not None)
    withheld = {place: "" for place, sampling in enumerate(samplings) if sampling.params.grammar}
    return StepMasks(withheld=withheld) if withheld else NO_MASKS


@dataclass
class _Followed:
    """A request whose tokens the process knows up to `told`. Mask `number` was begun at a time."""

    slot: int
    number: int = 0
    told: int = -1  # nothing, the grammar neither
    begun: float = 0.0
    late_seconds: float = 0.0
    deaths: int = 0


class Masks:
    """The masks of a model's requests. Any thread may call it."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        self._file = os.memfd_create("masks")
        self._shared = SharedMasks(self._file, SLOTS, vocab_size)
        learn = LearnTokens(vocabulary.tokenizer, vocab_size, list(vocabulary.ends), SLOTS, self._file)
        self._learn = framed(msgspec.msgpack.encode(learn))
        self._lock = threading.Lock()
        self._requests: dict[str, _Followed] = {}  # the one asked for last is last
        self._free = list(reversed(range(SLOTS)))
        self._numbers = 0
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._knows = False  # the vocabulary
        self._died = 0.0

    def start(self) -> None:
        """Start the process, and return once it knows the vocabulary. Raises MasksFailed."""
        with self._lock:
            if self._closed:
                raise MasksFailed("the model was let go of")
            process = self._process = subprocess.Popen(
                (sys.executable, "-m", MODULE),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # a traceback would show what is generated
                pass_fds=(self._file,),
                env=bare_environment(),
            )
        watch = threading.Timer(START_SECONDS, process.kill)
        watch.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(self._learn)
            process.stdin.flush()
            if process.stdout.read(len(READY)) != READY:
                raise MasksFailed("the vocabulary cannot be used for grammars")
            self._knows = True
        except (OSError, ValueError):  # it was ended meanwhile
            raise MasksFailed("the process of masks does not start") from None
        finally:
            watch.cancel()

    def begin(self, request_id: str, grammar: str, generated: Sequence[int]) -> None:
        """Have the mask of a request's next token computed."""
        with self._lock:
            self._send(self._ask(request_id, grammar, generated))

    def begin_step(self, chunks: Iterable[ScheduledChunk]) -> None:
        """Ask for all masks that a step needs, while its layers run."""
        with self._lock:
            asks: list[AskMask] = []
            for chunk in chunks:
                sampling = chunk.sampling
                if sampling is not None and sampling.params.grammar and sampling.past is not None:
                    asks += self._ask(chunk.request_id, sampling.params.grammar, sampling.past.generated)
            self._send(asks)

    def take_step(self, chunks: Iterable[ScheduledChunk]) -> StepMasks:
        """The masks of a step that was begun. Those that are late are withheld."""
        samplings = (chunk for chunk in chunks if chunk.sampling is not None)
        wanted = {
            place: (chunk.request_id, chunk.sampling.index)
            for place, chunk in enumerate(samplings)
            if chunk.sampling is not None and chunk.sampling.params.grammar
        }
        if not wanted:
            return NO_MASKS
        deadline = time.perf_counter() + GRACE_SECONDS
        masks, withheld = dict[int, Words](), dict[int, str]()
        for place, (request_id, index) in wanted.items():
            with self._lock:
                followed = self._requests.get(request_id)
                if followed is None:
                    self._look()  # no slot may be free because the process has died
            if followed is None or followed.told != index:
                # There is no slot for it just now, or no process.
                withheld[place] = "" if followed is None or self._knows else self._late(followed)
                continue
            while not self._is_done(followed) and time.perf_counter() < deadline:
                time.sleep(PAUSE_SECONDS)
            if not self._is_done(followed):
                withheld[place] = self._late(followed)
            elif (failure := self._shared.failure(followed.slot)) is not None:
                withheld[place] = f"its grammar failed: {failure}"
            else:
                masks[place] = self._shared.mask(followed.slot)
        return StepMasks(masks, withheld)

    def is_done(self, request_id: str) -> bool:
        """Whether the mask that was begun last for the request is there, or will not come."""
        with self._lock:
            self._look()
            followed = self._requests.get(request_id)
            return followed is not None and self._is_done(followed)

    def forget(self, request_id: str) -> None:
        """The request has ended, or is no longer here."""
        with self._lock:
            followed = self._requests.get(request_id)
            if followed is not None and self._is_idle(followed):
                del self._requests[request_id]
                self._free.append(followed.slot)

    def close(self) -> None:
        """End the process that computes masks. A second call does nothing."""
        with self._lock:
            process, self._process = self._process, None
            if not self._closed:
                self._closed = True
                os.close(self._file)
        if process is not None:
            _end(process)

    def _is_done(self, followed: _Followed) -> bool:
        return followed.number > 0 and self._shared.number(followed.slot) == followed.number

    def _is_idle(self, followed: _Followed) -> bool:
        """Whether nothing is written into its slot: its mask is there, or the process that was at it has died."""
        return followed.number == 0 or self._is_done(followed)

    def _ask(self, request_id: str, grammar: str, generated: Sequence[int]) -> list[AskMask]:
        """What to tell the process for a request's next mask; nothing where it knows, or is at it."""
        if not self._knows:
            return []
        followed = self._requests.pop(request_id, None)
        if followed is None:
            slot = self._slot()
            if slot is None:
                return []
            followed = _Followed(slot)
        self._requests[request_id] = followed
        if followed.told == len(generated) or (followed.number and not self._is_done(followed)):
            return []
        is_new = not 0 <= followed.told < len(generated)
        more = list(generated if is_new else generated[followed.told :])
        self._numbers += 1
        followed.number, followed.told, followed.begun = self._numbers, len(generated), time.perf_counter()
        return [AskMask(followed.slot, followed.number, more, grammar if is_new else None)]

    def _slot(self) -> int | None:
        """A free slot, or that of the request that was asked for longest ago."""
        if self._free:
            return self._free.pop()
        for request_id, followed in self._requests.items():
            if self._is_idle(followed):
                del self._requests[request_id]
                return followed.slot
        return None

    def _late(self, followed: _Followed) -> str:
        """Count what a request's mask has taken. Returns why the request ends, or nothing where it goes on."""
        with self._lock:
            self._look()
            if followed.deaths >= DEATHS:
                return "its grammar took too much memory"
            now = time.perf_counter()
            if not self._knows or not followed.number:
                return NO_PROCESS if now - self._died > RESTART_SECONDS else ""
            followed.late_seconds += now - followed.begun
            followed.begun = now
        if followed.late_seconds > MOST_LATE_SECONDS:
            return f"its grammar held it up for more than {MOST_LATE_SECONDS:g} s"
        return ""

    def _look(self) -> None:
        """Start the process again where it has died. What it knew is told again."""
        process = self._process
        if process is None or not self._knows or process.poll() is None:
            return
        log.warning("mask_process_died", code=process.returncode)
        self._process, self._knows, self._died = None, False, time.perf_counter()
        for followed in self._requests.values():
            if followed.number and not self._is_done(followed):
                followed.deaths += 1
            followed.number, followed.told = 0, -1
        threading.Thread(target=self._restart, args=(process,), name="masks", daemon=True).start()

    def _restart(self, process: "subprocess.Popen[bytes]") -> None:
        """Start the process until it lives: without it requests with a grammar would wait for ever."""
        while True:
            _end(process)
            try:
                self.start()
                return
            except (MasksFailed, OSError) as error:
                log.error("mask_process_lost", error=str(error))
            with self._lock:
                if self._closed:
                    return
                process = self._process or process
            time.sleep(TRY_AGAIN_SECONDS)

    def _send(self, asks: list[AskMask]) -> None:
        if not asks or self._process is None or not self._knows:
            return
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(framed(msgspec.msgpack.encode(asks)))
            self._process.stdin.flush()
        except OSError:
            self._look()


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
    process.wait()
