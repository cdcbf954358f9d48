"""Masks of the tokens that grammars permit: begun when a step begins, taken when it has logits.

They are computed by a process beside the worker. What it needs to know of a request follows from the request's grammar
and tokens alone: any worker goes on with it.
"""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from livescale.services.worker.grammars.mask_computer import MaskComputer, MasksFailed
from livescale.services.worker.grammars.shared_masks import AskMask, LearnTokens, SharedMasks
from livescale.services.worker.scheduling.batch import ScheduledChunk, Withheld

SLOTS = 512
GRACE_SECONDS = 0.002  # that a step waits at most for all of its masks
MOST_LATE_SECONDS = 1.0  # of a processor, for all masks of one request that steps did not get in time
DEATHS = 2  # of the process while it computed for one request
PAUSE_SECONDS = 2e-5
RESTART_SECONDS = 30.0  # that requests wait for a process that died

MaskWords = npt.NDArray[np.int32]

LATER = Withheld()
NEVER = "Grammars cannot be applied here:"
REMEDY = "send a simpler schema, pattern or grammar"
TOO_SLOW = Withheld(f"The request's grammar took more than {MOST_LATE_SECONDS:g} s of a processor; {REMEDY}.")
TOO_LARGE = Withheld(f"The request's grammar took too much memory; {REMEDY}.")
NO_PROCESS = Withheld("The process that applies grammars does not run; send the request again.", code=503)


@dataclass(frozen=True)
class Vocabulary:
    """A model's tokens: its compressed tokenizer.json, and those that end a text."""

    tokenizer: bytes
    ends: tuple[int, ...]


@dataclass(frozen=True)
class StepMasks:
    """What may be chosen for a step's samplings, by their places: masks, and what has none yet or never, and why."""

    masks: Mapping[int, MaskWords] = field(default_factory=dict)
    withheld: Mapping[int, Withheld] = field(default_factory=dict)


NO_MASKS = StepMasks()


def without_masks(chunks: Iterable[ScheduledChunk]) -> StepMasks:
    """What may be chosen while there are no masks: nothing where there is a grammar."""
    samplings = (chunk.sampling for chunk in chunks if chunk.sampling is not None)
    withheld = {place: LATER for place, sampling in enumerate(samplings) if sampling.params.grammar}
    return StepMasks(withheld=withheld) if withheld else NO_MASKS


@dataclass
class _Followed:
    """A request whose tokens the process knows up to `told`. Its mask `number` was begun last, and `is_late` where a
    step did not get it. `late_seconds` are those of a processor for earlier masks that were late."""

    slot: int
    number: int = 0
    told: int = -1  # nothing, the grammar neither
    is_late: bool = False
    late_seconds: float = 0.0
    deaths: int = 0


class Masks:
    """The masks of a model's requests. Any thread may call it."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        file = os.memfd_create("masks")
        self._shared = SharedMasks(file, SLOTS, vocab_size)
        learn = LearnTokens(vocabulary.tokenizer, vocab_size, list(vocabulary.ends), SLOTS, file)
        self._computer = MaskComputer(learn, self._forget_all)
        self._lock = self._computer.lock
        self._requests: dict[str, _Followed] = {}  # the one asked for last is last
        self._free = list(reversed(range(SLOTS)))
        self._numbers = 0
        self._never: Withheld | None = None

    def start(self) -> None:
        """Start the process, and return once it knows the vocabulary. Until then masks are late. Raises MasksFailed;
        then none will come."""
        try:
            self._computer.start()
        except MasksFailed as error:
            self._never = Withheld(f"{NEVER} {error}.", code=503)
            raise

    def begin(self, request_id: str, grammar: str, generated: Sequence[int]) -> None:
        """Have the mask of a request's next token computed."""
        with self._lock:
            self._computer.send(self._ask(request_id, grammar, generated))

    def begin_step(self, chunks: Iterable[ScheduledChunk]) -> None:
        """Ask for all masks that a step needs, while its layers run."""
        with self._lock:
            asks: list[AskMask] = []
            for chunk in chunks:
                sampling = chunk.sampling
                if sampling is not None and sampling.params.grammar and sampling.past is not None:
                    asks += self._ask(chunk.request_id, sampling.params.grammar, sampling.past.generated)
            self._computer.send(asks)

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
        masks, withheld = dict[int, MaskWords](), dict[int, Withheld]()
        for place, (request_id, index) in wanted.items():
            taken = self._take(request_id, index, deadline)
            if isinstance(taken, Withheld):
                withheld[place] = taken
            else:
                masks[place] = taken
        return StepMasks(masks, withheld)

    def is_done(self, request_id: str) -> bool:
        """Whether the mask that was begun last for the request is there, or will not come."""
        with self._lock:
            self._computer.look()
            followed = self._requests.get(request_id)
            if followed is None:
                return self._never is not None
            return self._is_done(followed) or self._verdict(followed) is not LATER

    def forget(self, request_id: str) -> None:
        """The request has ended, or is no longer here."""
        with self._lock:
            followed = self._requests.get(request_id)
            if followed is not None and self._is_idle(followed):
                del self._requests[request_id]
                self._free.append(followed.slot)

    def close(self) -> None:
        """End the process that computes masks. A second call does nothing."""
        self._computer.close()

    def _take(self, request_id: str, index: int, deadline: float) -> MaskWords | Withheld:
        if self._never is not None:
            return self._never
        with self._lock:
            followed = self._requests.get(request_id)
            if followed is None or followed.told != index:
                # There is no slot for it just now, or no process.
                self._computer.look()
                return LATER if followed is None else self._verdict(followed)
        while not self._is_done(followed) and time.perf_counter() < deadline:
            time.sleep(PAUSE_SECONDS)
        with self._lock:
            if not self._is_done(followed):
                followed.is_late = True
                self._computer.look()
                return self._verdict(followed)
            self._count(followed)
            if self._ends(followed):
                return self._verdict(followed)
        failure = self._shared.failure(followed.slot)
        return Withheld(_failed(failure)) if failure else np.frombuffer(self._shared.mask(followed.slot), np.int32)

    def _is_done(self, followed: _Followed) -> bool:
        return followed.number > 0 and self._shared.number(followed.slot) == followed.number

    def _is_idle(self, followed: _Followed) -> bool:
        """Whether nothing is written into its slot: its mask is there, or the process that was at it has died."""
        return followed.number == 0 or self._is_done(followed)

    def _ask(self, request_id: str, grammar: str, generated: Sequence[int]) -> list[AskMask]:
        """What to tell the process for a request's next mask; nothing where it knows, or is at it."""
        if not self._computer.knows:
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
        self._count(followed)
        if self._ends(followed):
            return []
        is_new = not 0 <= followed.told < len(generated)
        more = list(generated if is_new else generated[followed.told :])
        self._numbers += 1
        followed.number, followed.told = self._numbers, len(generated)
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

    def _count(self, followed: _Followed) -> None:
        """Count what a mask that was late has taken of a processor: time in which nothing ran is not the request's."""
        if followed.is_late:
            followed.late_seconds += self._shared.seconds(followed.slot)
            followed.is_late = False

    def _verdict(self, followed: _Followed) -> Withheld:
        """Why a request whose mask is not there ends, or LATER where it goes on."""
        if not self._ends(followed):
            if not self._computer.knows:
                return NO_PROCESS if self._computer.dead_seconds > RESTART_SECONDS else LATER
            so_far = self._seconds_so_far(followed)
            if followed.late_seconds + so_far <= MOST_LATE_SECONDS:
                return LATER
            followed.late_seconds += so_far
            self._computer.kill()  # limits of grammars do not hold, and others wait for this one to end
        return TOO_LARGE if followed.deaths >= DEATHS else TOO_SLOW

    def _ends(self, followed: _Followed) -> bool:
        return followed.deaths >= DEATHS or followed.late_seconds > MOST_LATE_SECONDS

    def _seconds_so_far(self, followed: _Followed) -> float:
        """What the mask that is being computed has taken of a processor. One that waits has taken nothing."""
        working = self._shared.working(followed.slot)
        if working is None or working.number != followed.number:
            return 0.0
        return max(0.0, self._computer.processor_seconds(working.thread) - working.begun)

    def _forget_all(self) -> None:
        """The process has died: it has to be told everything again. What it was at counts as the cause."""
        for followed in self._requests.values():
            working = self._shared.working(followed.slot)
            if working is not None and working.number == followed.number:
                followed.deaths += 1
            self._shared.stop(followed.slot)
            followed.number, followed.told, followed.is_late = 0, -1, False


def _failed(reason: str) -> str:
    return f"The request's grammar cannot be followed: {reason}."
