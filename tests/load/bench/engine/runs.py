from livescale.load.bench.engine.cases import CASES, PREFILLS
from livescale.load.bench.engine.rows import (
    OWN,
    SizeRun,
)
from livescale.load.peers.protocol import Kept, Mixed, Ready, StepSeconds
from livescale.shared.messages.parameters import DType


def measured_run(
    rates: dict[str, float], size: str = "500m", kernels: str = "avx512_bf16", dtype: DType = "bfloat16"
) -> SizeRun:
    """A run in which every case has these rates, and those of the core are 100."""
    run = SizeRun(size, dtype)
    run.errors = dict.fromkeys(rates, 0.01)
    run.rates = {case.name: {name: [rate] for name, rate in rates.items()} for case in CASES}
    run.roofs = {case.name: [100.0] for case in CASES}
    run.attention = {case.name: 0.25 for case in PREFILLS}
    run.ready = {name: Ready(4.0) for name in rates} | {OWN: Ready(3.0, 0.01, kernels)}
    run.firsts = {name: [[0.1] * 6] for name in rates}
    # Three in two hundred steps beside prompts take three times as long.
    both = StepSeconds([0.1] * 197 + [0.3] * 3, 20.6)
    run.mixed = [Mixed(StepSeconds([0.1] * 200, 20.0), StepSeconds([1.0], 1.0), both, 3_200, 1_024)]
    run.kept = [Kept(StepSeconds([8.0], 8.0), StepSeconds([0.5], 0.5), StepSeconds([0.75], 0.75))]
    return run
