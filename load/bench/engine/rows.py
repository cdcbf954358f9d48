"""Evaluates `livescale bench engine`: records, with the bars that this engine must reach by the kernels that ran.
Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median

from livescale.load.bench.engine.cases import (
    CASES,
    DECODES,
    KEPT_PROMPT,
    MIXED_PROMPTS,
    MIXED_ROWS,
    PREFILLS,
    TAIL_STEPS,
    Case,
)
from livescale.load.bench.record import Record, measured
from livescale.load.peers.protocol import Kept, LayerCost, Mixed, Ready, StepSeconds
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.messages.parameters import DType

VLLM, LLAMA = "vLLM", "llama.cpp"
WRONG = 3.0  # so many times the error of transformers
TBT, TOGETHER = 2.0, 0.9
FIRST = 1.1
PYTHON_MICROSECONDS = 100.0


@dataclass(frozen=True)
class Bars:
    """The least ratio between a rate and that of another engine, where there is a bar.

    `fastest` compares prompts and many rows with the fastest peer. `gemm` compares, by case, with the rate at which the
    core multiplies; attention's products count as well if `counts_attention`. `alone` compares decoding one row with
    these peers. `prompts`, `one` and `many` compare with transformers. `memory` compares decoding one row with the rate
    at which parameters could be read. `tbt` and `together` compare prompts beside decodes with each by itself: tails at
    most, and rates at least.
    """

    fastest: float | None = None
    gemm: Mapping[str, float] = field(default_factory=dict)
    counts_attention: bool = False
    alone: Mapping[str, float] = field(default_factory=dict)
    prompts: float | None = None
    one: float | None = None
    many: float | None = None
    memory: float | None = None
    tbt: float | None = TBT
    together: float | None = TOGETHER


GEMM = {"prefill 128": 0.9, "prefill 512": 0.9, "prefill 2048": 0.75, "prefill 4 x 512": 0.9}
# Tiles multiply so fast that what is between products counts for more, and attention cannot be told from it.
TILES_GEMM = {"prefill 128": 0.7, "prefill 512": 0.7, "prefill 2048": 0.6, "prefill 4 x 512": 0.7}
ON_AMX = Bars(fastest=1.0, gemm=TILES_GEMM, counts_attention=True, many=1.6, memory=0.8)
ON_AVX512_BF16: Mapping[str, Bars] = {
    "500m": Bars(fastest=1.0, gemm=GEMM, alone={VLLM: 1.2, LLAMA: 0.9}, many=1.6, memory=0.7),
    "120m": Bars(fastest=0.95, gemm=GEMM, many=1.6, memory=0.7),
    # In a small model attention is a large part of the work, so that the matrices alone are no measure.
    "30m": Bars(gemm=GEMM, counts_attention=True, many=1.6, memory=0.7),
}


def bars_of(kernels: str, dtype: str, size: str) -> Bars:
    """The bars for a variant of the kernels; none where nothing was ever asked of it."""
    match kernels, dtype:
        case "portable", "float32":
            return Bars(prompts=0.8, one=0.8, many=0.8)
        case "portable", _:
            return Bars(prompts=2.0, one=1.2, many=1.2)
        case "amx", "bfloat16":
            return ON_AMX if size != "30m" else Bars(many=1.6)
        case "amx-emulated", "bfloat16":
            return Bars(memory=0.7, tbt=None, together=None)
        case "avx512_bf16", "bfloat16":
            return ON_AVX512_BF16[size]
    return Bars(tbt=None, together=None)


BENCH = "engine"
OWN, TRANSFORMERS = "livescale", "transformers"
ENGINES = (OWN, TRANSFORMERS, VLLM, LLAMA)

Rounds = dict[str, list[float]]  # by engine


@dataclass
class SizeRun:
    """What came of one size. `absent`: engines that are not there, and why. `roofs`: by case, what the core's rate of
    multiplying (prompts, their matrices alone) or reading (one row) would allow, in tokens/s. `attention`: by case,
    what it multiplies for so much that the matrices do. `errors`: of logits, by engine. `firsts`: of each start of an
    engine the seconds of one prompt after the other, the first before all else. Seconds are those of all that was
    measured for rates."""

    size: str
    dtype: DType = "bfloat16"
    absent: dict[str, str] = field(default_factory=dict)
    ready: dict[str, Ready] = field(default_factory=dict)
    firsts: dict[str, list[list[float]]] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    rates: dict[str, Rounds] = field(default_factory=dict)  # tokens/s, by case
    roofs: dict[str, list[float]] = field(default_factory=dict)
    attention: dict[str, float] = field(default_factory=dict)
    mixed: list[Mixed] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0

    def count(self, took: StepSeconds) -> None:
        self.cpu_seconds += took.cpu
        self.wall_seconds += took.wall

    @property
    def bars(self) -> Bars:
        return bars_of(self.ready[OWN].kernels, self.dtype, self.size)

    @property
    def lost(self) -> float:
        """The share of the time in which other programs had the core."""
        return 1 - self.cpu_seconds / self.wall_seconds

    @property
    def wrong(self) -> list[str]:
        """Engines whose logits differ from those of the model: they are not ranked."""
        return [name for name, error in self.errors.items() if error > WRONG * self.errors[TRANSFORMERS]]

    def rate(self, case: Case, engine: str) -> float | None:
        rounds = self.rates.get(case.name, {}).get(engine)
        return median(rounds) if rounds else None

    def ranked(self, case: Case) -> dict[str, float]:
        """The rates of peers whose logits are right, by name."""
        rates = {name: self.rate(case, name) for name in ENGINES if name != OWN and name not in self.wrong}
        return {name: rate for name, rate in rates.items() if rate is not None}


def values(run: SizeRun) -> Iterator[Record]:
    """A record for every figure of every engine, without bars."""
    for case in CASES:
        for name in ENGINES:
            if (rate := run.rate(case, name)) is not None:
                yield measured(BENCH, f"{run.size} {case.name}, {name}", rate, "tokens/s")
    for name, ready in run.ready.items():
        yield measured(BENCH, f"{run.size} process start to its first answer, {name}", ready.answering, "s")


def rows(run: SizeRun) -> Iterator[Record]:
    """This engine against others and against what the core can do."""
    reference = run.errors[TRANSFORMERS]
    for name, error in run.errors.items():
        most = WRONG if name == OWN else None
        yield measured(BENCH, f"{run.size} error of logits, {name}", error, "relative", reference, at_most=most)
    for case in PREFILLS:
        yield from against_fastest(run, case)
        yield against(run, case, TRANSFORMERS, run.ranked(case)[TRANSFORMERS], run.bars.prompts)
        yield from against_gemm(run, case)
    yield from one_row(run, DECODES[0])
    for many in DECODES[1:]:
        yield from against_fastest(run, many)
        yield against(run, many, TRANSFORMERS, run.ranked(many)[TRANSFORMERS], run.bars.many)
    yield from mixed_rows(run)
    yield from kept_rows(run)
    yield from start_rows(run)


def against(run: SizeRun, case: Case, name: str, other: float, bar: float | None) -> Record:
    own = run.rate(case, OWN)
    assert own is not None
    return measured(BENCH, f"{run.size} {case.name} / {name}", own, "tokens/s", other, at_least=bar)


def against_fastest(run: SizeRun, case: Case) -> Iterator[Record]:
    """Without vLLM nothing is said of the fastest: transformers is there in any case, and far from it."""
    rates = run.ranked(case)
    fastest = max(sorted(rates), key=lambda name: rates[name])
    others = [name for name in rates if name != fastest]
    ran = f"{fastest}, before {' and '.join(others)}" if others else f"{fastest}, the only one"
    yield against(run, case, f"fastest peer ({ran})", rates[fastest], run.bars.fastest if VLLM in rates else None)


def against_gemm(run: SizeRun, case: Case) -> Iterator[Record]:
    bar, counts_attention = run.bars.gemm.get(case.name), run.bars.counts_attention
    matrices = median(run.roofs[case.name])
    both = matrices / (1 + run.attention[case.name])
    yield against(run, case, "GEMM", matrices, None if counts_attention else bar)
    yield against(run, case, "GEMM, attention's as well", both, bar if counts_attention else None)


def one_row(run: SizeRun, case: Case) -> Iterator[Record]:
    bars = run.bars
    for name, rate in run.ranked(case).items():
        yield against(run, case, name, rate, bars.one if name == TRANSFORMERS else bars.alone.get(name))
    yield against(run, case, "memory", median(run.roofs[case.name]), bars.memory)


def mixed_rows(run: SizeRun) -> Iterator[Record]:
    """Records of prompts beside decodes; tails are those of all rounds together."""
    beside = p99([seconds for one in run.mixed for seconds in one.both.steps]) * 1e3
    alone = p99([seconds for one in run.mixed for seconds in one.alone.steps]) * 1e3
    yield measured(BENCH, f"{run.size} mixed: TBT p99 / decode alone", beside, "ms", alone, at_most=run.bars.tbt)
    together = median(tokens_per_second(one) for one in run.mixed)
    apart = median(tokens_per_second_apart(one) for one in run.mixed)
    case = f"{run.size} mixed: together / apart"
    yield measured(BENCH, case, together, "tokens/s", apart, at_least=run.bars.together)


def kept_rows(run: SizeRun) -> Iterator[Record]:
    """Records of the time to the first token, beside the same prompt with nothing kept. Whole blocks are kept, but not
    the prompt's last token."""
    computed = median(one.none.cpu for one in run.kept) * 1e3
    block = WorkerSettings().block_size
    kept = (KEPT_PROMPT - 1) // block * block
    case = f"{run.size} first token of {KEPT_PROMPT}, {kept} of them"
    cached = median(one.cached.cpu for one in run.kept) * 1e3
    yield measured(BENCH, f"{case} in the KV cache / none", cached, "ms", computed)
    fetched = median(one.fetched.cpu for one in run.kept) * 1e3
    yield measured(BENCH, f"{case} in host memory / none", fetched, "ms", computed)


def tokens_per_second(mixed: Mixed) -> float:
    return (mixed.decoded + mixed.prompted) / mixed.both.cpu


def tokens_per_second_apart(mixed: Mixed) -> float:
    """As many tokens of both kinds, one kind after the other."""
    decoding = mixed.decoded / MIXED_ROWS * mixed.alone.cpu / len(mixed.alone.steps)
    prompts = mixed.prompted / sum(MIXED_PROMPTS) * mixed.prompts.cpu
    return (mixed.decoded + mixed.prompted) / (decoding + prompts)


def p99(steps: list[float]) -> float:
    """The 99th percentile by nearest rank. With few values it would be the maximum, or next to it."""
    assert len(steps) >= TAIL_STEPS
    return sorted(steps)[-(len(steps) // 100) - 1]


def start_rows(run: SizeRun) -> Iterator[Record]:
    last_block = run.ready[OWN].last_block
    assert last_block is not None
    first = last_block + first_request(run, OWN)
    yield measured(BENCH, f"{run.size} parameters ready to first token", first * 1e3, "ms")
    for name, starts in run.firsts.items():
        case, first = f"{run.size} first request / later, {name}", first_request(run, name)
        later = median(seconds for _, *others in starts for seconds in others)
        yield measured(BENCH, case, first * 1e3, "ms", later * 1e3, at_most=FIRST if name == OWN else None)


def first_request(run: SizeRun, name: str) -> float:
    """The median, over several starts of an engine, of the seconds that its first request took."""
    return median(start[0] for start in run.firsts[name])


def worker_rows(cost: LayerCost, spare_seconds: float) -> Iterator[Record]:
    """Whatever the size. The bar is the limit itself."""
    yield measured(BENCH, "worker: process start to ready for parameters", spare_seconds, "s")
    case = "python of a layer, batch 8"
    yield measured(BENCH, case, cost.outside * 1e6, "us", PYTHON_MICROSECONDS, at_most=1.0)
    yield measured(BENCH, "a layer without size, batch 8", cost.layer * 1e6, "us")
