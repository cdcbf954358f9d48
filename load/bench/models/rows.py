"""Evaluates `livescale bench models`: each architecture to transformers, experts to a dense model, and quantized models
to the same in bfloat16. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from livescale.load.bench.record import Record, measured
from livescale.load.sizes import Quantized
from livescale.shared.messages.parameters import Family

BENCH = "models"
FAST_KERNELS = ("amx", "avx512_bf16")
AT_LEAST, AT_LEAST_FAST = 1.0, 1.5  # of the rate of transformers
# A model with experts, the dense one with as many parameters at work, and the least ratio of their rates.
PAIRS: Mapping[tuple[str, str], float | None] = {("mixtral", "qwen2"): 0.7, ("olmoe", "qwen2"): None}

# A family, how it is quantized, and the least ratio of each case's rate to that in bfloat16.
QUANTIZED: Mapping[tuple[Family, Quantized], Mapping[str, float]] = {
    ("qwen2", "int4"): {"decode b1": 2.0, "decode b32": 0.9, "prefill 512": 0.85},
    ("qwen2", "int8"): {"decode b1": 1.5, "decode b32": 0.9, "prefill 512": 0.9},
    ("qwen2", "fp8"): {"decode b1": 1.5, "decode b32": 0.9, "prefill 512": 0.9},
    ("gpt_oss", "mxfp4"): {},
}

Rates = Mapping[str, Sequence[float]]  # tokens a second of CPU time, by case


def against_transformers(family: str, ours: Rates, theirs: Rates, kernels: str) -> Iterator[Record]:
    """A row for each case; the bar depends on the kernels that ran."""
    bar = AT_LEAST_FAST if kernels in FAST_KERNELS else AT_LEAST
    for case, rates in ours.items():
        their = median(theirs[case])
        yield measured(BENCH, f"{family}, {case}, to transformers", median(rates), "tokens/s", their, at_least=bar)


def against_dense(case: str, rates: Mapping[str, Rates]) -> Iterator[Record]:
    """A row for each pair of which both were measured, `rates` by family."""
    for (experts, dense), bar in PAIRS.items():
        if experts in rates and dense in rates:
            ours, theirs = median(rates[experts][case]), median(rates[dense][case])
            yield measured(BENCH, f"{experts}, {case}, to {dense}", ours, "tokens/s", theirs, at_least=bar)


def against_bfloat16(family: Family, how: Quantized, ours: Rates, wide: Rates) -> Iterator[Record]:
    """A row for each case of a quantized model, beside the same one in bfloat16."""
    bars = QUANTIZED[family, how]
    for case, rates in ours.items():
        their = median(wide[case])
        name = f"{family} in {how}, {case}, to bfloat16"
        yield measured(BENCH, name, median(rates), "tokens/s", their, at_least=bars.get(case))
