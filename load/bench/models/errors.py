"""How far logits in bfloat16 stray from those in float32: this engine's, and those of transformers in bfloat16."""

from collections.abc import Sequence
from dataclasses import replace
from typing import IO

from livescale.load.bench.engine.cases import prompts
from livescale.load.bench.engine.processes import EngineProcess, EngineProcesses, Program, engine_processes
from livescale.load.bench.engine.run import row_error
from livescale.load.bench.models.comparisons import OWN, TRANSFORMERS
from livescale.load.bench.models.rows import error_rows
from livescale.load.bench.record import RecordPrinter
from livescale.load.kept import kept_model
from livescale.load.peers.protocol import AskForced, AskGreedy, GreedyTokens
from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.worker.engine.kernels.variants import KernelsName

LENGTHS = (5, 129, 300)
TOKENS = 16
SEEDS = range(2)  # of prompts of each length


def compare_errors(printer: RecordPrinter, family: str, kernels: KernelsName, log: IO[str]) -> None:
    """Compare errors of logits with those of transformers."""
    checkpoint = kept_model("medium", printer.progress, family)
    vocab_size = open_checkpoint(checkpoint, "bfloat16").config.vocab_size
    with engine_processes(checkpoint, log, kernels) as members:
        engines = [members.start(program)[0] for program in (OWN, TRANSFORMERS)]
        printer.progress(f"{family}: errors of logits")
        errors = measure_errors(members, engines, TRANSFORMERS, vocab_size)
    own, theirs = errors[OWN.name], errors[TRANSFORMERS.name]
    for record in error_rows(family, own, theirs):
        printer.emit(record)


def measure_errors(
    members: EngineProcesses, engines: Sequence[EngineProcess], transformers: Program, vocab_size: int
) -> dict[str, list[float]]:
    """The error of each row, by engine. Each engine continues the same prompts, and transformers in float32 says what
    the logits should have been. Raises EngineProcessFailed."""
    asked = [prompt for seed in SEEDS for prompt in prompts(seed, vocab_size, LENGTHS)]
    errors: dict[str, list[float]] = {}
    with members.started(replace(transformers, name="reference", dtype="float32")) as reference:
        for engine in engines:
            for prompt in asked:
                made = engine.ask(AskGreedy(prompt, TOKENS), GreedyTokens)
                right = reference.ask(AskForced(prompt, made.tokens), GreedyTokens)
                errors.setdefault(engine.name, []).extend(map(row_error, made.logits, right.logits))
    return errors
