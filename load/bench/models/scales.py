"""How long a scale-out takes for a quantized model and for the same in bfloat16: a system for each, the same links."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

from msgspec.structs import replace

from livescale.load.bench.losses import watched_stack
from livescale.load.bench.record import RecordPrinter
from livescale.load.bench.samples import renewable
from livescale.load.bench.scales import there_and_back
from livescale.load.bench.transfer.scale import MODEL, stack_settings
from livescale.services.supervisor.processes import Echo
from livescale.shared.messages.registry import AskModels
from livescale.shared.messages.scaling import ScaleRecord
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.subjects import MODELS

RATE = 100e6  # bytes a second of every link


async def measure_scales(
    printer: RecordPrinter, checkpoints: Sequence[Path], rounds: int, echo: Echo
) -> list[tuple[int, float]]:
    """Of each checkpoint the model's bytes, and the seconds from a decision until a new worker has them. Raises
    BenchFailed."""
    return [await _measure(printer, checkpoint, rounds, echo) for checkpoint in checkpoints]


async def _measure(printer: RecordPrinter, checkpoint: Path, rounds: int, echo: Echo) -> tuple[int, float]:
    settings = replace(stack_settings(checkpoint, LinkSettings(link_rate=RATE), 1), dtype="bfloat16")
    async with renewable(lambda: watched_stack(settings, printer.progress, echo)) as stacks:
        models = await stacks.now[0].bus.call(MODELS, AskModels(), timeout=5.0)

        async def out_and_back() -> ScaleRecord:
            stack, losses = stacks.now
            return await losses.over(partial(there_and_back, stack.bus, MODEL, 2))

        seconds = []
        for number in range(rounds):
            printer.progress(f"{checkpoint.name}: scale {number + 1} of {rounds}")
            record = await printer.samples.take_async(out_and_back, stacks.renew)
            times = {phase.name: phase.at for phase in record.phases}
            seconds.append(times["whole"] - record.decision.at)
    return models.models[0].size_bytes, median(seconds)
