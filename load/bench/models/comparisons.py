"""Asks engines in turn and compares their rates: beside transformers, a dense model, or the same one in bfloat16."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO

from livescale.load.bench.engine.cases import Case, DecodeCase, PrefillCase
from livescale.load.bench.engine.processes import EngineProcess, Program, engine_processes
from livescale.load.bench.models.rows import (
    QUANTIZED,
    against_bfloat16,
    against_dense,
    against_transformers,
    arena_row,
    fp8_kv_rows,
    matrices_row,
)
from livescale.load.bench.record import Record, RecordPrinter
from livescale.load.kept import kept_model
from livescale.load.peers.protocol import AskMultiply, AskRead, MemoryRate, StepSeconds
from livescale.load.sizes import Quantized, Size
from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.worker.engine.kernels.variants import KernelsName
from livescale.services.worker.scheduling.batch import kv_bytes
from livescale.shared.memory.arena import placed_bytes
from livescale.shared.messages.parameters import Family, KvCacheDType

OWN = Program("livescale", "livescale.load.bench.engine.own")
TRANSFORMERS = Program("transformers", "livescale.load.peers.transformers_peer")
MATRICES = Program("matrices", "livescale.load.bench.models.matrices")
PREFILL: Case = PrefillCase("prefill 512", (512,))
DECODE: Case = DecodeCase("decode b8", 8)
LONG: Case = PrefillCase("prefill 2048", (2048,))
OF_QUANTIZED: tuple[Case, ...] = (DecodeCase("decode b1", 1), DecodeCase("decode b32", 32), PREFILL)
KEPT_AS: tuple[KvCacheDType, ...] = ("fp8", "auto")  # KV


def beside_transformers(printer: RecordPrinter, family: str, rounds: int, kernels: KernelsName, log: IO[str]) -> None:
    """Compare an architecture with transformers."""
    checkpoint = kept_model("medium", printer.progress, family)
    vocab_size = open_checkpoint(checkpoint, "bfloat16").config.vocab_size
    with engine_processes(checkpoint, log, kernels) as members:
        started = [members.start(program) for program in (OWN, TRANSFORMERS)]
        engines = {member.name: member for member, _ in started}
        printer.progress(f"{family}: {rounds} rounds of both engines")
        rates = _ask_in_turn(engines, (PREFILL, DECODE), vocab_size, rounds)
    for record in against_transformers(family, rates[OWN.name], rates[TRANSFORMERS.name], started[0][1].kernels):
        printer.emit(record)


def beside_dense(
    printer: RecordPrinter,
    pairs: Sequence[tuple[str, str]],
    rounds: int,
    size: Size,
    kernels: KernelsName,
    log: IO[str],
) -> None:
    """Compare models with experts with a dense one of as many parameters at work."""
    with ExitStack() as running:
        engines, vocab_size = dict[str, EngineProcess](), 0
        for family in dict.fromkeys(family for pair in pairs for family in pair):
            checkpoint = kept_model(size, printer.progress, family)
            vocab_size = open_checkpoint(checkpoint, "bfloat16").config.vocab_size
            members = running.enter_context(engine_processes(checkpoint, log, kernels))
            engines[family], _ = members.start(OWN)
        if engines:
            printer.progress(f"{rounds} rounds of {', '.join(engines)}")
            rates = _ask_in_turn(engines, (PREFILL,), vocab_size, rounds)
            for record in against_dense(PREFILL.name, rates):
                printer.emit(record)


def beside_bfloat16(
    printer: RecordPrinter, family: Family, how: Quantized, rounds: int, size: Size, kernels: KernelsName, log: IO[str]
) -> None:
    """Compare a quantized model with the same in bfloat16: rates, matrices alone, and memory."""
    with ExitStack() as running:
        engines, vocab_size = dict[str, EngineProcess](), 0
        for name, quantized in ((how, how), ("bfloat16", None)):
            checkpoint = kept_model(size, printer.progress, family, quantized)
            vocab_size = open_checkpoint(checkpoint, "bfloat16").config.vocab_size
            engines[name], _ = running.enter_context(engine_processes(checkpoint, log, kernels)).start(OWN)
        printer.progress(f"{rounds} rounds of {family} in {how} and in bfloat16")
        rates = _ask_in_turn(engines, OF_QUANTIZED, vocab_size, rounds)
    for record in against_bfloat16(family, how, rates[how], rates["bfloat16"]):
        printer.emit(record)
    if QUANTIZED[family, how]:  # of a model with experts a row passes few
        checkpoint = kept_model(size, printer.progress, family, how)
        printer.emit(_matrices_alone(checkpoint, f"{family} in {how}", rounds, kernels, log))
    for name, quantized in ((how, how), ("bfloat16", None)):
        checkpoint = kept_model(size, printer.progress, family, quantized)
        sizes = [layout.size_bytes for layout in open_checkpoint(checkpoint, "bfloat16", layout="panels").layouts]
        stored = sum(file.stat().st_size for file in checkpoint.glob("*.safetensors"))
        printer.emit(arena_row(f"{family} in {name}", placed_bytes(sizes), stored))


def _matrices_alone(checkpoint: Path, name: str, rounds: int, kernels: KernelsName, log: IO[str]) -> Record:
    with engine_processes(checkpoint, log, kernels) as members, members.started(MATRICES) as matrices:
        asked = [(matrices.ask(AskMultiply(1), MemoryRate), matrices.ask(AskRead(), MemoryRate)) for _ in range(rounds)]
    read, memory = ([rate.bytes_per_second for rate in rates] for rates in zip(*asked, strict=True))
    return matrices_row(name, read, memory)


def with_fp8_kv(
    printer: RecordPrinter, family: Family, rounds: int, size: Size, kernels: KernelsName, log: IO[str]
) -> None:
    """Compare a model whose KV is kept in fp8 with the same in bfloat16."""
    checkpoint = kept_model(size, printer.progress, family)
    opened = [open_checkpoint(checkpoint, "bfloat16", kv_cache_dtype=kept) for kept in KEPT_AS]
    manifests = [one.manifest([0] * len(one.layouts)) for one in opened]
    with engine_processes(checkpoint, log, kernels) as members:
        engines: dict[str, EngineProcess] = {
            kept: members.start(replace(OWN, kv_cache_dtype=kept))[0] for kept in KEPT_AS
        }
        printer.progress(f"{rounds} rounds of {family} with KV in fp8 and in bfloat16")
        rates = _ask_in_turn(engines, (DECODE, LONG), manifests[0].config.vocab_size, rounds)
    token_bytes = [kv_bytes(manifest, 1, manifest.config.num_hidden_layers, 1) for manifest in manifests]
    for record in fp8_kv_rows(family, rates["fp8"], rates["auto"], *token_bytes):
        printer.emit(record)


def _ask_in_turn(
    engines: dict[str, EngineProcess], cases: Sequence[Case], vocab_size: int, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """The rates of each engine by case. Each is the first as often as the last, and a round before counts for none."""
    rates: dict[str, dict[str, list[float]]] = {name: {case.name: [] for case in cases} for name in engines}
    for number in range(rounds + 1):
        for case in cases:
            question = case.question(number + 1, vocab_size)
            for name in list(engines)[:: 1 if number % 2 else -1]:
                took = engines[name].ask(question, StepSeconds)
                if number:
                    rates[name][case.name].append(case.tokens / took.cpu)
    return rates
