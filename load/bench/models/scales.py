"""How long a scale-out takes for a quantized model and for the same in bfloat16: a system for each, the same links."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

import uvloop

from livescale.load.bench.models.rows import scale_rows
from livescale.load.bench.record import RecordPrinter
from livescale.load.bench.run import measuring
from livescale.load.bench.system import Launcher, renewable
from livescale.load.bench.transfer.scale import start_spare
from livescale.load.kept import kept_model
from livescale.load.sizes import Quantized, Size
from livescale.shared.messages.parameters import Family
from livescale.shared.messages.scaling import ScaleRecord
from livescale.shared.runtime.settings import LinkSettings

RATE = 100e6  # bytes a second of every link
SCALED: tuple[Family, Quantized] = "qwen2", "int4"


def compare_scales(printer: RecordPrinter, rounds: int, size: Size) -> None:
    """Compare scale-outs of a quantized model with those of the same in bfloat16."""
    family, how = SCALED
    checkpoints = [kept_model(size, printer.progress, family, one) for one in (how, None)]
    with measuring(printer) as launcher:
        own, wide = uvloop.run(measure_scales(printer, checkpoints, rounds, launcher))
    for record in scale_rows(f"{family} in {how}", own, wide):
        printer.emit(record)


async def measure_scales(
    printer: RecordPrinter, checkpoints: Sequence[Path], rounds: int, launcher: Launcher
) -> list[tuple[int, float]]:
    """Of each checkpoint the model's bytes, and the seconds from a decision until a new worker has them. Raises
    BenchFailed."""
    return [await _measure(printer, checkpoint, rounds, launcher) for checkpoint in checkpoints]


async def _measure(printer: RecordPrinter, checkpoint: Path, rounds: int, launcher: Launcher) -> tuple[int, float]:
    start = partial(start_spare, launcher, checkpoint, LinkSettings(link_rate=RATE), 1, "bfloat16")
    async with renewable(start) as systems:
        size_bytes = await systems.now.model_bytes()

        async def out_and_back() -> ScaleRecord:
            return await systems.now.there_and_back(2)

        seconds = []
        for number in range(rounds):
            printer.progress(f"{checkpoint.name}: scale {number + 1} of {rounds}")
            record = await printer.samples.take_async(out_and_back, systems.renew)
            times = {phase.name: phase.at for phase in record.phases}
            seconds.append(times["whole"] - record.decision.at)
    return size_bytes, median(seconds)
