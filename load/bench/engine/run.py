"""Runs one size of `livescale bench engine`: starts the engines, checks their logits, and asks them case by case in
turn."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Literal, TypeVar

import numpy as np

from livescale.load.bench.engine.cases import (
    CASES,
    CHECKED,
    CHECKED_TOKENS,
    FIRST_LATER,
    FIRST_TOKENS,
    PREFILLS,
    WARM_UPS,
    Case,
    DecodeCase,
    PrefillCase,
    attention_share,
    kept_question,
    mixed_question,
    prompts,
)
from livescale.load.bench.engine.processes import (
    EngineProcess,
    EngineProcesses,
    EngineProcessFailed,
    Program,
    engine_processes,
)
from livescale.load.bench.engine.rows import LLAMA, OWN, TRANSFORMERS, VLLM, SizeRun
from livescale.load.bench.engine.steady import Attempt, steadiest
from livescale.load.peers.protocol import (
    AskForced,
    AskGreedy,
    AskLayerCost,
    AskMultiply,
    AskPrefill,
    AskRead,
    GreedyTokens,
    Kept,
    LayerCost,
    MemoryRate,
    Mixed,
    StepSeconds,
)
from livescale.services.host.checkpoint import open_checkpoint

TRANSFORMERS_MODULE = "livescale.load.peers.transformers_peer"
PROGRAMS = (
    Program(OWN, "livescale.load.bench.engine.own"),
    Program(TRANSFORMERS, TRANSFORMERS_MODULE),
    Program(VLLM, "livescale.load.peers.vllm_peer", "vllm"),
    Program(LLAMA, "livescale.load.peers.llama_peer", "llama_cpp"),
)
EXACTER: Mapping[str, Literal["float32", "float64"]] = {"bfloat16": "float32", "float32": "float64"}
ROOF = Program("roof", "livescale.load.bench.engine.roofline")
PYTHON = Program("python", "livescale.load.bench.engine.overhead")
PYTHON_ROWS, PYTHON_STEPS = 8, 100

Tell = Callable[[str], None]
T = TypeVar("T")


class SizeBench:
    """The engines of one checkpoint. A peer that fails is left out from then on, this engine may not fail."""

    def __init__(self, run: SizeRun, checkpoint: Path, members: EngineProcesses, tell: Tell) -> None:
        opened = open_checkpoint(checkpoint, run.dtype)
        self.run = run
        run.attention = {case.name: attention_share(opened.config, case.lengths) for case in PREFILLS}
        self._vocab_size = opened.config.vocab_size
        # All that is read for a row: of the embedding it is next to nothing, unless it is the head too.
        embedding = 0 if opened.config.tie_word_embeddings else opened.layouts[0].size_bytes
        self._read_bytes = opened.size_bytes - embedding
        self._members = members
        self._tell = tell
        self._engines: list[EngineProcess] = []
        self._seeds = iter(range(1, 1_000_000, 100))

    def measure(self, rounds: int, *, with_peers: bool) -> None:
        """Start, check and ask every engine. Raises EngineProcessFailed if this project's own engine fails."""
        self._start(rounds, with_peers=with_peers)
        self._check()
        with self._members.started(replace(ROOF, dtype=self.run.dtype)) as roof:
            # Not before: after a process has started, or a pause, the first steps of any engine take a fifth longer.
            for case in WARM_UPS:
                self._ask_all(case, self._engines)
            for number in range(rounds):
                name = f"{self.run.size}, round {number + 1} of {rounds}"
                for case in CASES:
                    self._round(f"{name}: {case.name}", case, number, roof)
                self.run.mixed.append(self._mix(f"{name}: mixed", rounds, roof))
                self.run.kept.append(self._engines[0].ask(kept_question(next(self._seeds), self._vocab_size), Kept))

    def _round(self, name: str, case: Case, number: int, roof: EngineProcess) -> None:
        """Ask all engines for a case."""
        # Each engine is the first as often as the last. One that failed is not asked again.
        attempt = self._steadily(
            name, case, roof, lambda: self._ask_all(case, self._engines[:: 1 if number % 2 else -1])
        )
        if isinstance(case, PrefillCase) or case.rows == 1:  # many rows that decode are bounded by both
            self.run.roofs.setdefault(case.name, []).extend((attempt.before, attempt.after))
        for engine, took in attempt.measured:
            self.run.rates.setdefault(case.name, {}).setdefault(engine, []).append(case.tokens / took.cpu)
            self.run.count(took)

    def _mix(self, name: str, rounds: int, roof: EngineProcess) -> Mixed:
        def asked() -> Mixed:
            return self._engines[0].ask(mixed_question(next(self._seeds), self._vocab_size, rounds), Mixed)

        return self._steadily(name, PREFILLS[0], roof, asked).measured

    def _steadily(self, name: str, case: Case, roof: EngineProcess, asked: Callable[[], T]) -> Attempt[T]:
        """Ask, again where what bounds this case changed meanwhile."""
        self._tell(name)
        return steadiest(partial(self._speed, case, roof), asked, lambda problem: self._tell(f"{name}: {problem}"))

    def _start(self, rounds: int, *, with_peers: bool) -> None:
        for program in PROGRAMS:
            if (reason := self._why_absent(program, with_peers)) is not None:
                self.run.absent[program.name] = reason
                continue
            self._tell(f"{self.run.size}: starting {program.name}")
            program = replace(program, dtype=self.run.dtype)
            try:
                # A bar depends on this engine's first request, of which each start has one.
                others = range(rounds - 1 if program.name == OWN else 0)
                firsts = [self._start_for_a_moment(program) for _ in others]
                member, self.run.ready[program.name] = self._members.start(program)
                self._engines.append(member)
                self.run.firsts[program.name] = [*firsts, self._first_requests(member)]
            except EngineProcessFailed as error:
                self._leave_out(program.name, error)

    def _why_absent(self, program: Program, with_peers: bool) -> str | None:
        if program.package is None:
            return None
        if not with_peers:
            return "not asked for"
        if self.run.dtype == "float32":
            return "asked in bfloat16"
        return None if program.is_installed else "not installed"

    def _start_for_a_moment(self, program: Program) -> list[float]:
        with self._members.started(program) as member:
            return self._first_requests(member)

    def _first_requests(self, member: EngineProcess) -> list[float]:
        asked = [prompts(next(self._seeds), self._vocab_size, (FIRST_TOKENS,)) for _ in range(1 + FIRST_LATER)]
        return [member.ask(AskPrefill(prompt), StepSeconds).cpu for prompt in asked]

    def _check(self) -> None:
        exacter = EXACTER[self.run.dtype]
        self._tell(f"{self.run.size}: comparing logits with transformers in {exacter}")
        asked = prompts(0, self._vocab_size, CHECKED)
        with self._members.started(Program("reference", TRANSFORMERS_MODULE, dtype=exacter)) as reference:
            for member in list(self._engines):
                try:
                    chosen = [member.ask(AskGreedy(prompt, CHECKED_TOKENS), GreedyTokens) for prompt in asked]
                except EngineProcessFailed as error:
                    self._leave_out(member.name, error)
                    continue
                exact = [
                    reference.ask(AskForced(prompt, one.tokens), GreedyTokens)
                    for prompt, one in zip(asked, chosen, strict=True)
                ]
                pairs = zip(chosen, exact, strict=True)
                self.run.errors[member.name] = max(relative_error(one.logits, other.logits) for one, other in pairs)

    def _ask_all(self, case: Case, engines: Sequence[EngineProcess]) -> list[tuple[str, StepSeconds]]:
        """One after the other, the same prompts for all."""
        question = case.question(next(self._seeds), self._vocab_size)
        answers = []
        for member in list(engines):
            try:
                answers.append((member.name, member.ask(question, StepSeconds)))
            except EngineProcessFailed as error:
                self._leave_out(member.name, error)
        return answers

    def _speed(self, case: Case, roof: EngineProcess) -> float:
        """What would bound a case that only multiplied or, of one row that decodes, only read; in tokens/s."""
        if isinstance(case, DecodeCase) and case.rows == 1:
            return roof.ask(AskRead(), MemoryRate).bytes_per_second / self._read_bytes
        tokens = case.tokens if isinstance(case, PrefillCase) else case.rows
        return tokens / roof.ask(AskMultiply(tokens), StepSeconds).cpu

    def _leave_out(self, name: str, error: EngineProcessFailed) -> None:
        if name in (OWN, TRANSFORMERS):
            raise error
        self._tell(f"{self.run.size}: without {name} from here on: {error}")
        self.run.absent[name] = "failed"
        self._engines = [member for member in self._engines if member.name != name]


def relative_error(rows: list[bytes], exact: list[bytes]) -> float:
    """The largest `row_error` of rows of logits, each of float32 `[vocab]`."""
    return max(row_error(row, other) for row, other in zip(rows, exact, strict=True))


def row_error(row: bytes, exact: bytes) -> float:
    """The root mean square of the error of a row of logits, float32 `[vocab]`, in standard deviations of the exact
    row."""
    mine, right = np.frombuffer(row, np.float32), np.frombuffer(exact, np.float32)
    if mine.shape != right.shape or not np.isfinite(mine).all():
        return float("inf")
    return float(np.sqrt(np.mean((mine - right) ** 2)) / right.std())


def measure_size(
    run: SizeRun, checkpoint: Path, kernels: str, rounds: int, with_peers: bool, log: IO[str], tell: Tell
) -> None:
    """`kernels`: as `--kernels` of a worker has them. Raises EngineProcessFailed."""
    with engine_processes(checkpoint, log, kernels) as members:
        SizeBench(run, checkpoint, members, tell).measure(rounds, with_peers=with_peers)


def measure_python(checkpoint: Path, kernels: str, log: IO[str]) -> LayerCost:
    """What a layer costs besides its kernels. Raises EngineProcessFailed."""
    with engine_processes(checkpoint, log, kernels) as members, members.started(PYTHON) as member:
        return member.ask(AskLayerCost(PYTHON_ROWS, PYTHON_STEPS), LayerCost)
