"""How far logits in bfloat16 stray from those in float32: this engine's, and those of transformers in bfloat16."""

from collections.abc import Sequence
from dataclasses import replace

from livescale.load.bench.engine.cases import prompts
from livescale.load.bench.engine.processes import EngineProcess, EngineProcesses, Program
from livescale.load.bench.engine.run import row_error
from livescale.load.peers.protocol import AskForced, AskGreedy, GreedyTokens

LENGTHS = (5, 129, 300)
TOKENS = 16
SEEDS = range(2)  # of prompts of each length


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
