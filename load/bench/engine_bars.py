"""What `livescale bench engine` asks of this engine, by the kernels that ran (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

VLLM, LLAMA = "vLLM", "llama.cpp"
WRONG = 3.0  # so many times the error of transformers
TBT, TOGETHER = 2.0, 0.9
FIRST = 1.1
PYTHON_MICROSECONDS = 100.0


@dataclass(frozen=True)
class Bars:
    """Rates are at least so many times those of another, where there is a bar.

    `fastest`: of the fastest peer, for prompts and for many rows; `gemm`: of what the core multiplies, by case, with
    attention's products counted as well if `counts_attention`; `alone`: decoding one row, of these peers; `prompts`,
    `one` and `many`: of transformers; `memory`: decoding one row, of what reading the parameters would allow;
    `tbt` and `together`: of prompts beside decodes, tails at most and rates at least, of each by itself.
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
    # Of a small model attention is so much of the work that the matrices alone are no measure.
    "30m": Bars(gemm=GEMM, counts_attention=True, many=1.6, memory=0.7),
}


def bars_of(kernels: str, dtype: str, size: str) -> Bars:
    """Of a variant of the kernels; without any where nothing was ever asked of it."""
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
