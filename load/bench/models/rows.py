"""Evaluates `livescale bench models`: each architecture to transformers, and experts to a dense model. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from livescale.load.bench.record import Record, measured

BENCH = "models"
FAST_KERNELS = ("amx", "avx512_bf16")
AT_LEAST, AT_LEAST_FAST = 1.0, 1.5  # of the rate of transformers
# A model with experts, the dense one with as many parameters at work, and the least ratio of their rates.
PAIRS: Mapping[tuple[str, str], float | None] = {("mixtral", "qwen2"): 0.7, ("olmoe", "qwen2"): None}

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
