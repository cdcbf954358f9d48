"""`livescale bench models`: every architecture beside transformers, experts beside a dense model, and quantized models
beside bfloat16."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO

import click
import uvloop

from livescale.load.bench.engine.cases import Case, DecodeCase, PrefillCase
from livescale.load.bench.engine.processes import EngineProcess, EngineProcessFailed, Program, engine_processes
from livescale.load.bench.models.errors import measure_errors
from livescale.load.bench.models.rows import (
    BENCH,
    PAIRS,
    QUANTIZED,
    against_bfloat16,
    against_dense,
    against_transformers,
    arena_row,
    chosen_quantized,
    error_rows,
    fp8_kv_rows,
    matrices_row,
    scale_rows,
)
from livescale.load.bench.models.scales import measure_scales
from livescale.load.bench.record import Record, RecordPrinter
from livescale.load.bench.run import kernels_option, measuring, rounds_option
from livescale.load.kept import KEPT, kept_model
from livescale.load.peers.protocol import AskMultiply, AskRead, MemoryRate, StepSeconds
from livescale.load.sizes import Quantized, Size
from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.worker.engine.kernels.variants import KernelsName
from livescale.services.worker.scheduling.batch import kv_bytes
from livescale.shared.memory.arena import placed_bytes
from livescale.shared.messages.parameters import Family, KvCacheDType
from livescale.shared.model.architectures import find_architecture, model_types

OWN = Program("livescale", "livescale.load.bench.engine.own")
TRANSFORMERS = Program("transformers", "livescale.load.peers.transformers_peer")
MATRICES = Program("matrices", "livescale.load.bench.models.matrices")
PREFILL: Case = PrefillCase("prefill 512", (512,))
DECODE: Case = DecodeCase("decode b8", 8)
LONG: Case = PrefillCase("prefill 2048", (2048,))
OF_QUANTIZED: tuple[Case, ...] = (DecodeCase("decode b1", 1), DecodeCase("decode b32", 32), PREFILL)
KEPT_AS: tuple[KvCacheDType, ...] = ("fp8", "auto")  # KV
LOG = KEPT / "bench-models.log"

WHATS = ("transformers", "errors", "dense", "bfloat16", "kv", "scales")
HOWS = tuple(how for _, how in QUANTIZED)
SCALED: tuple[Family, Quantized] = "qwen2", "int4"
GENERATING = tuple(name for name in model_types() if (found := find_architecture(name)) and found.generates)

option = partial(click.option, show_default=True, show_envvar=True)


@click.command()
@option(
    "--families",
    type=click.Choice(GENERATING),
    multiple=True,
    default=GENERATING,
    envvar="LIVESCALE_FAMILIES",
    help="Architectures; may be given several times.",
)
@rounds_option(3, "Number of rounds.")
@option(
    "--size",
    type=click.Choice(("small", "medium", "large")),
    default="large",
    envvar="LIVESCALE_SIZE",
    help="Size of the models with experts, of quantized ones, and of those that they are compared with.",
)
@kernels_option("Kernels of this engine. The results to reach depend on them.")
@option(
    "--only",
    type=click.Choice((*WHATS, *HOWS)),
    multiple=True,
    default=WHATS,
    envvar="LIVESCALE_ONLY",
    help="What is measured; may be given several times. Rates to those of transformers, errors of logits to those of "
    "transformers, experts to a dense model, quantized models to bfloat16 or one of them, KV in fp8, or scale-outs.",
)
def models(families: Sequence[str], rounds: int, size: Size, kernels: KernelsName, only: Sequence[str]) -> None:
    """Compare each architecture at 120M parameters with transformers, experts with a dense model, and quantized models
    and KV with the same in bfloat16.

    Rates are tokens a second of CPU time, on one core; the engines are asked in turn. Of models with experts as many
    parameters are at work as a dense model has: 2 of 8 experts, and 8 of 64.
    """
    printer = RecordPrinter(BENCH)
    LOG.parent.mkdir(parents=True, exist_ok=True)
    with LOG.open("w", encoding="utf-8") as log:
        try:
            for family in families if "transformers" in only else ():
                _beside_transformers(printer, family, rounds, kernels, log)
            for family in families if "errors" in only else ():
                _errors(printer, family, kernels, log)
            if "dense" in only:
                _beside_dense(printer, [pair for pair in PAIRS if {*pair} <= {*families}], rounds, size, kernels, log)
            for family, how in chosen_quantized(families, only):
                _beside_bfloat16(printer, family, how, rounds, size, kernels, log)
            if "kv" in only and "qwen2" in families:
                _with_fp8_kv(printer, "qwen2", rounds, size, kernels, log)
            if "scales" in only and SCALED[0] in families:
                _scale_outs(printer, rounds, size)
        except EngineProcessFailed as error:
            raise click.ClickException(f"{error}; see {LOG}") from None
    sys.exit(0 if printer.finish() else 1)


def _beside_transformers(printer: RecordPrinter, family: str, rounds: int, kernels: KernelsName, log: IO[str]) -> None:
    checkpoint = kept_model("medium", printer.progress, family)
    vocab_size = open_checkpoint(checkpoint, "bfloat16").config.vocab_size
    with engine_processes(checkpoint, log, kernels) as members:
        started = [members.start(program) for program in (OWN, TRANSFORMERS)]
        engines = {member.name: member for member, _ in started}
        printer.progress(f"{family}: {rounds} rounds of both engines")
        rates = _ask_in_turn(engines, (PREFILL, DECODE), vocab_size, rounds)
    for record in against_transformers(family, rates[OWN.name], rates[TRANSFORMERS.name], started[0][1].kernels):
        printer.emit(record)


def _errors(printer: RecordPrinter, family: str, kernels: KernelsName, log: IO[str]) -> None:
    checkpoint = kept_model("medium", printer.progress, family)
    vocab_size = open_checkpoint(checkpoint, "bfloat16").config.vocab_size
    with engine_processes(checkpoint, log, kernels) as members:
        engines = [members.start(program)[0] for program in (OWN, TRANSFORMERS)]
        printer.progress(f"{family}: errors of logits")
        errors = measure_errors(members, engines, TRANSFORMERS, vocab_size)
    own, theirs = errors[OWN.name], errors[TRANSFORMERS.name]
    for record in error_rows(family, own, theirs):
        printer.emit(record)


def _beside_dense(
    printer: RecordPrinter,
    pairs: Sequence[tuple[str, str]],
    rounds: int,
    size: Size,
    kernels: KernelsName,
    log: IO[str],
) -> None:
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


def _beside_bfloat16(
    printer: RecordPrinter, family: Family, how: Quantized, rounds: int, size: Size, kernels: KernelsName, log: IO[str]
) -> None:
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


def _with_fp8_kv(
    printer: RecordPrinter, family: Family, rounds: int, size: Size, kernels: KernelsName, log: IO[str]
) -> None:
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


def _scale_outs(printer: RecordPrinter, rounds: int, size: Size) -> None:
    family, how = SCALED
    checkpoints = [kept_model(size, printer.progress, family, one) for one in (how, None)]
    with measuring(printer) as launcher:
        own, wide = uvloop.run(measure_scales(printer, checkpoints, rounds, launcher))
    for record in scale_rows(f"{family} in {how}", own, wide):
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
