"""The settings of a worker, each a flag of `livescale run worker`."""

from typing import Annotated

from msgspec import Meta

from livescale.services.worker.engine.kernels.variants import KernelsName
from livescale.services.worker.scheduling.batch import PREFILL_CHUNK, block_bytes
from livescale.services.worker.scheduling.limits import SchedulerLimits
from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.messages.transfers import Load
from livescale.shared.runtime.role_settings import KvTransferMode
from livescale.shared.runtime.settings import (
    EngineName,
    EngineProfile,
    EngineSpeed,
    KeepParameters,
    LinkSettings,
    SwitchKv,
)

MIB = 1024 * 1024


class WorkerSettings(LinkSettings, frozen=True, kw_only=True):
    """The settings of a worker: one GPU, or one CPU core acting as one. The engine's flags have vLLM's names."""

    device: Annotated[
        str,
        Meta(
            description="Device that has the parameters and runs the engine: cpu, cuda:N, or auto, which is the first "
            "GPU that CUDA shows, else cpu",
            pattern=r"^(auto|cpu|cuda(:[0-9]+)?)$",
        ),
    ] = "auto"
    engine: EngineName = "torch"
    engine_profile: EngineProfile = "llama3-8b-a100"
    engine_speed: EngineSpeed = 1.0
    arena_bytes: Annotated[
        int,
        Meta(
            description="Bytes of memory for parameters, allocated at start; they bound the model that fits. A CPU "
            "worker takes more for a model whose matrices are copied: in float32, or not in panels",
            ge=MIB,
        ),
    ] = 1024 * MIB
    kv_bytes: Annotated[
        int,
        Meta(
            description="Bytes of memory for the KV cache, allocated at start; a modelled engine only counts them",
            ge=MIB,
        ),
    ] = 512 * MIB
    max_num_seqs: Annotated[
        int,
        Meta(description="Most requests that a worker runs at the same time", ge=1, le=1024, extra={"up": "Batches"}),
    ] = 16
    max_num_waiting: Annotated[
        int,
        Meta(
            description="Most requests that wait at a worker; the router keeps the others",
            ge=0,
            extra={"up": "Batches"},
        ),
    ] = 64
    max_num_batched_tokens: Annotated[
        int,
        Meta(
            description="Most tokens that one engine step computes, those of prefill and decode together",
            ge=64,
            le=2048,
            extra={"up": "Batches"},
        ),
    ] = 512
    tbt_ratio: Annotated[
        float,
        Meta(
            description="How many times as long as a step of decodes alone a step with prompts may take; tokens of "
            "prompts beyond that wait for later steps, all but a few",
            ge=1,
            extra={"up": "Batches"},
        ),
    ] = 1.85  # twice as long is what is meant to be kept: some rows take longer than others
    block_size: Annotated[
        int,
        Meta(
            description="Tokens in one block of the KV cache, a multiple of 16",
            ge=16,
            le=1024,
            multiple_of=16,
            extra={"up": "Memory of workers"},
        ),
    ] = 16
    host_kv_bytes: Annotated[
        int,
        Meta(
            description="Bytes of host memory, allocated at start, for KV of prompts that the KV cache had to evict; "
            "it is fetched back where that is faster than computing it again. 0 is none",
            ge=0,
        ),
    ] = 0
    adapter_bytes: Annotated[
        int,
        Meta(
            description="Most bytes of LoRA adapters that are kept; those used least recently are evicted",
            ge=1024 * 1024,
            extra={"up": "Memory of workers"},
        ),
    ] = 1 << 30
    enable_prefix_caching: Annotated[
        bool,
        Meta(description="Keep the KV of prompts in unused blocks, for later prompts that begin with the same tokens"),
    ] = True
    context_share: Annotated[
        float,
        Meta(
            description="Share, 0 to 1, of the KV cache and of --host-kv-bytes that is kept for sessions: requests "
            "with a prompt_cache_key. Their prompts and answers are evicted last; 0 keeps none",
            ge=0,
            le=1,
            extra={"up": "Prefix caching"},
        ),
    ] = 0.5
    context_seconds: Annotated[
        float,
        Meta(
            description="Seconds that a session is kept after its last answer, while there is room",
            ge=0,
            le=86_400,
            extra={"up": "Prefix caching"},
        ),
    ] = 1800.0
    keep_parameters: KeepParameters = True
    switch_kv: SwitchKv = "auto"
    kv_transfer: KvTransferMode = "by-layer"
    kernels: Annotated[
        KernelsName,
        Meta(
            description="Kernels that compute. On a CPU: amx (AMX-BF16), avx512_bf16, portable (any CPU), "
            "amx-emulated (any CPU, with the bits of amx, for pools of unlike CPUs), torch, compiled (the best of the "
            "first three), or auto: compiled, or torch where none were compiled. On a GPU: torch, or with any other "
            "value FlashInfer where it is installed. All workers of a system must compute the same bits"
        ),
    ] = "auto"
    cuda_graphs: Annotated[
        bool,
        Meta(description="On a GPU, run steps of up to 128 tokens as CUDA graphs, which are made as parameters arrive"),
    ] = True
    threads: Annotated[
        int,
        Meta(
            description="Threads that torch computes with; give all workers of a model the same number",
            ge=1,
            le=256,
            extra={"up": "Processes"},
        ),
    ] = 1

    def limits_of(self, command: Load, kv_blocks: int) -> SchedulerLimits:
        """How many requests and tokens a worker with so many KV blocks takes for the model that is loaded."""
        manifest = command.manifest
        host_kv_blocks = self.host_kv_bytes // block_bytes(manifest, self.block_size)
        return self.limits(manifest.config, command.max_model_len, kv_blocks, host_kv_blocks, command.tbt_slo)

    def limits(
        self,
        config: ModelConfig,
        max_model_len: int,
        kv_blocks: int,
        host_kv_blocks: int = 0,
        tbt_slo: float | None = None,
    ) -> SchedulerLimits:
        """The scheduler's limits for a model that has so many KV blocks here. With `tbt_slo`, in seconds, decodes are
        paced by it and not by --tbt-ratio."""
        return SchedulerLimits(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            tbt_ratio=self.tbt_ratio,
            tbt_slo=tbt_slo,
            max_model_len=max_model_len,
            vocab_size=config.vocab_size,
            kv_blocks=kv_blocks,
            kv_block_tokens=self.block_size,
            max_num_waiting=self.max_num_waiting,
            enable_prefix_caching=self.enable_prefix_caching,
            host_kv_blocks=host_kv_blocks,
            context_blocks=int(self.context_share * (kv_blocks + host_kv_blocks)),
            context_seconds=self.context_seconds,
            pools=config.pooling != "none",
            encodes=config.encodes,
            images=config.images,
        )

    def __post_init__(self) -> None:
        least = self.max_num_seqs + PREFILL_CHUNK
        if self.max_num_batched_tokens < least:
            raise ValueError(
                f"max-num-batched-tokens is {self.max_num_batched_tokens}: a step must hold a row of each of "
                f"max-num-seqs requests and one chunk of {PREFILL_CHUNK}, so at least {least}"
            )
