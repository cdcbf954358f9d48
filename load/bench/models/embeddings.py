"""Vectors of many texts, on one core: this engine against sentence-transformers, with the same token ids."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from statistics import median
from typing import IO

import numpy as np

from livescale.load.bench.engine.processes import EngineProcess, EngineProcessFailed, Program, engine_processes
from livescale.load.bench.record import Record, measured
from livescale.load.peers.protocol import AskVectors, Vectors

OWN = Program("livescale", "livescale.load.bench.models.vectors")
SENTENCES = Program("sentence-transformers", "livescale.load.peers.sentence_peer", "sentence_transformers")
TEXTS, TOKENS = 32, 128
WARM_UPS = 2
FASTER, ALIKE = 1.2, 0.9999
LEAST_ID, MOST_ID = 10, 1_000  # which every vocabulary has


@dataclass
class EmbeddingRun:
    """Texts per second of CPU time, by engine and round, and the least cosine to vectors in float32, by engine."""

    rates: dict[str, list[float]] = field(default_factory=dict)
    cosines: dict[str, float] = field(default_factory=dict)


def measure_embeddings(
    checkpoint: Path, kernels: str, rounds: int, log: IO[str], tell: Callable[[str], None]
) -> EmbeddingRun:
    """Ask both in turn. Raises EngineProcessFailed, also where sentence-transformers is not installed."""
    if not SENTENCES.is_installed:
        raise EngineProcessFailed("sentence-transformers is not installed: `make bench-peers`")
    run = EmbeddingRun()
    with engine_processes(checkpoint, log, kernels) as members:
        with members.started(replace(SENTENCES, name="reference", dtype="float32")) as reference:
            right = reference.ask(AskVectors(texts(0)), Vectors).vectors
        engines = [members.start(program)[0] for program in (OWN, SENTENCES)]
        for engine in engines:
            made = engine.ask(AskVectors(texts(0)), Vectors).vectors
            run.cosines[engine.name] = min(map(cosine, made, right))
            for seed in range(WARM_UPS):
                engine.ask(AskVectors(texts(seed)), Vectors)
        for number in range(rounds):
            tell(f"embeddings, round {number + 1} of {rounds}")
            _ask_all(run, engines[:: 1 if number % 2 else -1], texts(number + 1))
    return run


def _ask_all(run: EmbeddingRun, engines: Sequence[EngineProcess], prompts: list[list[int]]) -> None:
    for engine in engines:
        took = engine.ask(AskVectors(prompts), Vectors).took
        run.rates.setdefault(engine.name, []).append(len(prompts) / took.cpu)


def texts(seed: int) -> list[list[int]]:
    """So many texts of one length, as token ids."""
    chance = Random(seed)
    return [chance.choices(range(LEAST_ID, MOST_ID), k=TOKENS) for _ in range(TEXTS)]


def cosine(one: bytes, other: bytes) -> float:
    """The cosine of the angle between two vectors of float32."""
    left, right = (np.frombuffer(vector, np.float32).astype(np.float64) for vector in (one, other))
    return float(left @ right / np.sqrt((left @ left) * (right @ right)))


def embedding_rows(bench: str, size: str, run: EmbeddingRun) -> Iterator[Record]:
    """The rate with its bar, and how close vectors in bfloat16 come to those in float32."""
    case = f"embeddings, {size}, {TEXTS} texts of {TOKENS} tokens"
    own, theirs = (median(run.rates[program.name]) for program in (OWN, SENTENCES))
    yield measured(bench, case, own, "texts/s", theirs, at_least=FASTER)
    yield measured(bench, f"{case}: cosine to float32", run.cosines[OWN.name], "", 1.0, at_least=ALIKE)
    yield measured(bench, f"{case}: the peer's cosine to float32", run.cosines[SENTENCES.name], "")
