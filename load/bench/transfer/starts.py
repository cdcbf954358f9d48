"""Compares hot, warm and cold starts (LambdaScale 5): new instances get a model from a GPU, from hosts' memories, or
from disks."""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from livescale.load.bench.record import Record, RecordPrinter, measured
from livescale.load.bench.transfer.fleet import CarriedPlan, running
from livescale.load.bench.transfer.multicast import ROUNDS, Show, middle
from livescale.load.bench.transfer.shaping import emulated
from livescale.load.bench.transfer.start_cases import (
    DISK,
    HOLDERS,
    HOST_LINK,
    NAMES,
    ONE_MEMORY,
    OWN_DISKS,
    STARTS,
    carry,
    make_packed,
    outfits,
)
from livescale.load.kept import KEPT
from livescale.services.planner.plans.execution_pipelines import pipeline_ready
from livescale.services.planner.plans.make_plan import make_plan, predict
from livescale.services.planner.plans.plan import Multicast, TransferPlan
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.transfer.chunks import chunk_bytes_for

BENCH = "transfer"
BAR = 1.10  # times the prediction, which has a step begin with a whole block: chunks go on sooner


def starts(
    printer: RecordPrinter, settings: LinkSettings, size_bytes: int, rate: float, show: Show
) -> Iterator[Record]:
    """Each from its first byte's departure until the last target has all, and until the first execution pipeline has,
    against the plan's prediction. At last what ServerlessLLM does (each host reads its disk) where one memory had it.
    """
    KEPT.mkdir(parents=True, exist_ok=True)
    gpus = {"count": 1, "host-link": f"{HOST_LINK * rate:.0f} B/s"}
    with (
        tempfile.TemporaryDirectory(dir=KEPT, prefix="bench-starts-") as name,
        emulated(len(HOLDERS), rate, gpus, DISK * rate) as (topology, file),
    ):
        printer.progress(f"starts: making and packing a checkpoint of {size_bytes / 1e6:.0f} MB")
        directory, sizes = make_packed(Path(name), size_bytes)
        shaped = replace(settings, topology=str(topology), shaping_file=str(file))
        printer.progress(f"starts: {len(NAMES)} processes, each touches {sum(sizes) / 1e6:.0f} MB")
        seconds = {}
        with running(outfits(shaped, directory, sizes)) as fleet:
            for start in STARTS:
                printer.progress(start.case)
                multicast = start.multicast(topology, sizes)
                plan = make_plan("binomial", multicast, blocks=len(sizes))
                once = partial(carry, fleet, plan, multicast, rate)
                run = middle([printer.samples.take(once, fleet.renew) for _ in range(ROUNDS)])
                show(start.case, run)
                seconds[start.case] = run.seconds
                yield from told(start.case, run, multicast, plan, chunk_bytes_for(rate))
    case = f"{OWN_DISKS}, against {ONE_MEMORY}"
    yield measured(BENCH, case, seconds[OWN_DISKS], "s", seconds[ONE_MEMORY])


def told(case: str, run: CarriedPlan, multicast: Multicast, plan: TransferPlan, chunk_bytes: int) -> Iterator[Record]:
    predicted = predict(multicast, plan, chunk_bytes)
    executable = min(pipeline_ready(nodes, predicted.ready) for nodes in plan.pipelines)
    yield measured(BENCH, case, run.seconds, "s", predicted.seconds, at_most=BAR)
    yield measured(BENCH, f"{case}, first pipeline", run.executable, "s", executable, at_most=BAR)
