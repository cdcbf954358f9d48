"""The settings of a worker."""

from typing import Annotated

from msgspec import Meta

from livescale.services.worker.engine.kernels.variants import KernelsName
from livescale.services.worker.scheduling.batch import PREFILL_CHUNK
from livescale.services.worker.scheduling.limits import SchedulerLimits
from livescale.shared.runtime.settings import EngineName, EngineProfile, EngineSpeed, LinkSettings, SwitchKv

MIB = 1024 * 1024


class WorkerSettings(LinkSettings, frozen=True, kw_only=True):
    """The settings of a worker: one GPU, or one CPU core acting as one. The engine's flags have vLLM's names."""

    device: Annotated[
        str,
        Meta(
            description="Where parameters lie and the engine runs: cpu, cuda:N, or auto, the first GPU that CUDA shows "
            "and else cpu",
            pattern=r"^(auto|cpu|cuda(:[0-9]+)?)$",
        ),
    ] = "auto"
    engine: EngineName = "torch"
    engine_profile: EngineProfile = "llama3-8b-a100"
    engine_speed: EngineSpeed = 1.0
    arena_bytes: Annotated[
        int,
        Meta(
            description="Memory for parameters, touched at start; the largest model that fits. On a CPU twice: kernels "
            "have them laid out once more",
            ge=MIB,
        ),
    ] = 1024 * MIB
    kv_bytes: Annotated[
        int, Meta(description="Memory for the KV cache, touched at start (a modelled engine only counts it)", ge=MIB)
    ] = 512 * MIB
    max_num_seqs: Annotated[
        int, Meta(description="Requests that run at the same time on a worker", ge=1, le=1024, extra={"up": "Batches"})
    ] = 16
    max_num_waiting: Annotated[
        int,
        Meta(
            description="Requests that may wait at a worker for a slot; the router keeps the others",
            ge=0,
            extra={"up": "Batches"},
        ),
    ] = 64
    max_num_batched_tokens: Annotated[
        int,
        Meta(
            description="Rows of one engine step, prefill and decode together", ge=64, le=2048, extra={"up": "Batches"}
        ),
    ] = 512
    tbt_ratio: Annotated[
        float,
        Meta(
            description="With prompts in the same step, decodes take at most so many times as long as alone: rows of "
            "prompts are left for later steps, all but a few",
            ge=1,
            extra={"up": "Batches"},
        ),
    ] = 1.85  # twice as long is what is meant to be kept: some rows take longer than others
    block_size: Annotated[
        int,
        Meta(
            description="Tokens in a block of the KV cache, a multiple of 16",
            ge=16,
            le=1024,
            multiple_of=16,
            extra={"up": "Memory of workers"},
        ),
    ] = 16
    host_kv_bytes: Annotated[
        int,
        Meta(
            description="Memory of the host, touched at start, for KV of prompts that is in no block of the KV cache "
            "any more, to be fetched where that is faster than to compute it again; 0: none",
            ge=0,
        ),
    ] = 0
    enable_prefix_caching: Annotated[
        bool,
        Meta(description="Keep the KV of prompts in blocks that nobody needs, for prompts that begin the same"),
    ] = True
    context_share: Annotated[
        float,
        Meta(
            description="Of the KV cache and that in host memory, the share for contexts: prompts and answers of "
            "requests with a prompt_cache_key stay in it ahead of others; 0: none do",
            ge=0,
            le=1,
            extra={"up": "Prefix caching"},
        ),
    ] = 0.5
    context_seconds: Annotated[
        float,
        Meta(
            description="How long a context stays after its last answer, while there is room",
            ge=0,
            le=86_400,
            extra={"up": "Prefix caching"},
        ),
    ] = 1800.0
    switch_kv: SwitchKv = "auto"
    kernels: Annotated[
        KernelsName,
        Meta(
            description="Whose kernels compute. On a CPU: amx (AMX-BF16), avx512_bf16, portable (any CPU), "
            "amx-emulated (any CPU, with the bits of amx, for pools of unlike CPUs), torch, compiled (the best of the "
            "first three), or auto, which is torch where they were not compiled. On a GPU: torch, or else FlashInfer "
            "where it is installed. All workers of a pool must compute the same bits"
        ),
    ] = "auto"
    cuda_graphs: Annotated[
        bool, Meta(description="On a GPU, steps of up to 128 rows are queued by CUDA graphs, made as parameters come")
    ] = True
    threads: Annotated[
        int,
        Meta(
            description="Threads torch computes with; equal on all workers of a model",
            ge=1,
            le=256,
            extra={"up": "Processes"},
        ),
    ] = 1

    def limits(self, max_model_len: int, vocab_size: int, kv_blocks: int, host_kv_blocks: int = 0) -> SchedulerLimits:
        """The scheduler's limits for a model that has so many KV blocks here."""
        return SchedulerLimits(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            tbt_ratio=self.tbt_ratio,
            max_model_len=max_model_len,
            vocab_size=vocab_size,
            kv_blocks=kv_blocks,
            kv_block_tokens=self.block_size,
            max_num_waiting=self.max_num_waiting,
            enable_prefix_caching=self.enable_prefix_caching,
            host_kv_blocks=host_kv_blocks,
            context_blocks=int(self.context_share * (kv_blocks + host_kv_blocks)),
            context_seconds=self.context_seconds,
        )

    def __post_init__(self) -> None:
        least = self.max_num_seqs + PREFILL_CHUNK
        if self.max_num_batched_tokens < least:
            raise ValueError(
                f"max-num-batched-tokens is {self.max_num_batched_tokens}: a step must hold a row of each of "
                f"max-num-seqs requests and one chunk of {PREFILL_CHUNK}, so at least {least}"
            )
