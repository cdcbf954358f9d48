"""Evaluates `livescale bench models`: each architecture to transformers, experts to a dense model, and quantized models
and KV to the same in bfloat16. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from livescale.load.bench.record import Record, measured
from livescale.load.sizes import Quantized
from livescale.shared.messages.parameters import Family

BENCH = "models"
FAST_KERNELS = ("amx", "avx512_bf16")
AT_LEAST = 1.0  # of the rate of transformers; by kernels for CPUs that multiply bfloat16:
AT_LEAST_FAST = {"prefill 512": 1.2, "decode b8": 1.5}
MOST_ERROR = 1.5  # times that of transformers in bfloat16
MOST_BYTES = 1.03  # in the arena, times the checkpoint's
MOST_SCALE = 1.1  # of the times of two scale-outs, over the ratio of their bytes
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


def chosen_quantized(families: Sequence[str], only: Sequence[str]) -> list[tuple[Family, Quantized]]:
    """The quantized models that are measured: with `bfloat16` all of these families, else those that are named."""
    return [(family, how) for family, how in QUANTIZED if family in families and ("bfloat16" in only or how in only)]


def against_transformers(family: str, ours: Rates, theirs: Rates, kernels: str) -> Iterator[Record]:
    """A row for each case; the bar depends on the kernels that ran."""
    for case, rates in ours.items():
        their, bar = median(theirs[case]), AT_LEAST_FAST[case] if kernels in FAST_KERNELS else AT_LEAST
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


def matrices_row(name: str, read: Sequence[float], memory: Sequence[float]) -> Record:
    """How fast a row passes the quantized matrices, to how fast memory is read; both in bytes a second, by round."""
    case = f"{name}, matrices alone at b1, to memory"
    return measured(BENCH, case, median(read) / 1e9, "GB/s", median(memory) / 1e9)


def error_rows(family: str, ours: Sequence[float], theirs: Sequence[float]) -> Iterator[Record]:
    """The errors of logits in bfloat16, one of each row, to those of transformers in bfloat16.

    The median row counts, and the mean square is told. Where two experts are almost as good, a rounding chooses the
    other one; a few such rows are most of a mean square, and they are not the same for both.
    """
    case = f"{family}, error of logits in bfloat16, to transformers'"
    yield measured(BENCH, f"{case}: median row", median(ours), "", median(theirs), at_most=MOST_ERROR)
    own, other = (_root_mean_square(errors) for errors in (ours, theirs))
    yield measured(BENCH, f"{case}: root mean square", own, "", other)


def _root_mean_square(numbers: Sequence[float]) -> float:
    return float((sum(one**2 for one in numbers) / len(numbers)) ** 0.5)


def arena_row(name: str, arena_bytes: int, stored_bytes: int) -> Record:
    """The bytes that a model takes in a worker's arena, to those of its checkpoint's files."""
    case = f"{name}, bytes in the arena, to the checkpoint's"
    return measured(BENCH, case, arena_bytes / 1e6, "MB", stored_bytes / 1e6, at_most=MOST_BYTES)


def scale_rows(name: str, own: tuple[int, float], wide: tuple[int, float]) -> Iterator[Record]:
    """The time of a scale-out to that in bfloat16, over the ratio of their bytes; both are bytes and seconds."""
    (size, took), (wide_size, wide_took) = own, wide
    yield measured(BENCH, f"{name}, decision to whole", took, "s", wide_took)
    case = f"{name}, time of a scale-out to bfloat16, over the bytes' ratio"
    yield measured(BENCH, case, took / wide_took, "", size / wide_size, at_most=MOST_SCALE)


def fp8_kv_rows(family: str, ours: Rates, wide: Rates, token_bytes: int, wide_bytes: int) -> Iterator[Record]:
    """What KV in fp8 takes, and the rates with it, to KV in bfloat16."""
    yield measured(BENCH, f"{family}, KV in fp8, bytes a token, to bfloat16", token_bytes, "B", wide_bytes)
    for case, rates in ours.items():
        yield measured(
            BENCH, f"{family}, KV in fp8, {case}, to bfloat16", median(rates), "tokens/s", median(wide[case])
        )
