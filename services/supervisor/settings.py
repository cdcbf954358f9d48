"""The settings of a whole system on one machine."""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta

from livescale.services.supervisor.model_settings import LoraSettings, ModelSettings
from livescale.shared.messages.model_spec import ReasoningParser, ToolCallParser
from livescale.shared.messages.parameters import KvCacheDType
from livescale.shared.runtime.role_settings import (
    DecodeScaling,
    DisaggregationName,
    KvTransferMode,
    PrefillShare,
    PreScaleDecode,
)
from livescale.shared.runtime.settings import (
    HOST_AND_PORT,
    BusSettings,
    EngineName,
    EngineProfile,
    EngineSpeed,
    GroupSetup,
    HostCacheName,
    HostCacheTtl,
    KeepParameters,
    LiveEveryHop,
    LiveName,
    LiveWhen,
    PolicyName,
    RoutingName,
    ScalingMode,
    SwitchKv,
    TbtSlo,
    TopologyName,
    TtftSlo,
)

MIB = 1024 * 1024


# Flags of a system that are passed on to all workers as they are, and are not among its `worker_options`. The system
# has another default for them, or computes it. Where a flag is None, the default of workers counts.
WORKER_FLAGS = (
    "arena_bytes",
    "kv_bytes",
    "host_kv_bytes",
    "enable_prefix_caching",
    "keep_parameters",
    "switch_kv",
    "kv_transfer",
)


class StackSettings(BusSettings, frozen=True, kw_only=True):
    """A whole system on this machine.

    `worker_options`: what else all workers are told, by the names of fields of `WorkerSettings`. `livescale up` has a
    flag for each of those fields that is marked so.
    """

    models: Annotated[
        tuple[ModelSettings, ...],
        Meta(
            description="A model to serve: its name, and its directory in Hugging Face format or its hub id. May be "
            "given several times"
        ),
    ] = ()
    loras: Annotated[
        tuple[LoraSettings, ...],
        Meta(description="A LoRA adapter: its name, and its directory in peft's format. May be given several times"),
    ] = ()
    workers: Annotated[
        int,
        Meta(
            description="Number of worker processes; 0 starts one for each GPU or CPU core, at least two, and no more "
            "than the topology has GPUs",
            ge=0,
            le=1024,
        ),
    ] = 0
    routers: Annotated[
        int, Meta(description="Number of router processes; one is active, the others stand by", ge=1, le=16)
    ] = 1
    gateways: Annotated[int, Meta(description="Number of gateway processes, each with its own port", ge=1, le=16)] = 1
    host: Annotated[str, Meta(description="Address that the gateways listen on")] = "127.0.0.1"
    port: Annotated[
        int,
        Meta(
            description="Port of the first gateway; the others take the ports after it, and 0 takes free ones",
            ge=0,
            le=65535,
        ),
    ] = 8000
    api_key: Annotated[
        tuple[str, ...],
        Meta(
            description="A key that clients must send: KEY or NAME=KEY; may be given several times. The environment "
            "hides it from other users, which a flag does not"
        ),
    ] = ()
    api_keys: Annotated[str, Meta(description="YAML file of API keys and their rate limits; SECURITY.md shows it")] = ""
    allowed_origins: Annotated[
        tuple[str, ...],
        Meta(
            description="Origin whose pages may call the API from a browser, such as https://chat.example.org, or *; "
            "may be given several times"
        ),
    ] = ()
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        Meta(
            description="Number type of parameters and arithmetic; auto is bfloat16, or float32 on a CPU without "
            "bfloat16 where no kernels were compiled"
        ),
    ] = "auto"
    kv_cache_dtype: Annotated[
        KvCacheDType,
        Meta(
            description="How keys and values are kept and moved. auto: as they are computed; fp8: rounded to e4m3, so "
            "that twice as many tokens have room as in bfloat16, on CPUs"
        ),
    ] = "auto"
    layout: Annotated[
        Literal["auto", "plain", "panels"],
        Meta(
            description="Order of bfloat16 matrices in files, in memory and on links. panels: as the kernels for CPUs "
            "read them, so that workers need not rearrange them; plain: row by row; auto: panels unless workers have "
            "GPUs"
        ),
    ] = "auto"
    min_instances: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="Fewest instances of every model; by default 1")
    ] = None
    max_instances: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Most instances of every model; by default as many as there are workers for"),
    ] = None
    fixed_share: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(
            description="Share of the workers, 0 to 1, that instances take at all times, as many of each model; "
            "--min-instances and --max-instances go before it. By default models are scaled"
        ),
    ] = None
    downscale_delay_s: Annotated[
        float, Meta(description="Seconds that an instance of any model must be idle before it is given back", ge=0)
    ] = 5.0
    max_model_len: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Most tokens of a request, prompt and output together; by default the checkpoint's limit"),
    ] = None
    tool_call_parser: Annotated[
        ToolCallParser | None,
        Meta(description="How models write calls of tools; by default as the chat template of each says"),
    ] = None
    reasoning_parser: Annotated[
        ReasoningParser | None,
        Meta(description="How models write their reasoning; by default as the chat template of each says"),
    ] = None
    tensor_parallel_size: Annotated[
        int,
        Meta(
            description="Number of workers that make up an instance, each with a part of every layer; for large models",
            ge=1,
            le=64,
        ),
    ] = 1
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Meta(
            description="What each worker computes on; auto is a GPU where CUDA shows enough of them, else a CPU core"
        ),
    ] = "auto"
    engine: EngineName = "torch"
    engine_profile: EngineProfile = "llama3-8b-a100"
    engine_speed: EngineSpeed = 1.0
    arena_bytes: Annotated[
        Annotated[int, Meta(ge=MIB)] | None,
        Meta(
            description="Bytes of memory of each worker for parameters; a CPU worker takes twice as much for models in "
            "float32 or not in panels. By default twice what the largest of the given models takes, and 64 MiB"
        ),
    ] = None
    kv_bytes: Annotated[
        Annotated[int, Meta(ge=MIB)] | None,
        Meta(
            description="Bytes of memory of each worker for its KV cache; by default room for twice as many requests "
            "of full length as run at once, within 16 MiB to 512 MiB"
        ),
    ] = None
    host_kv_bytes: Annotated[
        int,
        Meta(
            description="Bytes of host memory of each worker for KV of prompts that its KV cache had to evict; 0 is "
            "none",
            ge=0,
        ),
    ] = 0
    enable_prefix_caching: Annotated[
        bool, Meta(description="Keep the KV of prompts for later prompts that begin with the same tokens")
    ] = True
    worker_options: Mapping[str, float | str] = {}
    transport: Annotated[
        Literal["ucx", "socket"],
        Meta(description="Transport of parameters and KV between processes: UCX, or plain TCP sockets"),
    ] = "ucx"
    link_rate: Annotated[
        float,
        Meta(description="Most bytes a second that each worker and host sends over its link; 0 is no limit", ge=0),
    ] = 0.0
    share_memory: Annotated[
        Literal["auto", "off"],
        Meta(
            description="Whether workers map the host's copy of a model instead of receiving one. auto: yes, unless "
            "links are shaped; off: never"
        ),
    ] = "auto"
    topology: TopologyName = ""
    shaped: Annotated[
        bool, Meta(description="Limit links to the rates of --topology, to emulate its cluster on this machine")
    ] = False
    host_cache: HostCacheName = "pool"
    host_cache_ttl: HostCacheTtl = 300.0
    plan_policy: PolicyName = "auto"
    group_setup_s: GroupSetup = 0.1
    live: LiveName = "zigzag"
    live_every_hop: LiveEveryHop = False
    live_when: LiveWhen = "always"
    keep_parameters: KeepParameters = True
    switch_kv: SwitchKv = "auto"
    routing: RoutingName = "least-loaded"
    disaggregation: DisaggregationName = "off"
    prefill_share: PrefillShare | None = None
    decode_scaling: DecodeScaling = "mutate"
    pre_scale_decode: PreScaleDecode = True
    scaling: ScalingMode = "automatic"
    kv_transfer: KvTransferMode = "by-layer"
    ttft_slo: TtftSlo = 1.0
    tbt_slo: TbtSlo = 0.15
    system: Annotated[
        str,
        Meta(
            description="A system to compare with, by its name: `livescale systems` shows its settings. Flags, "
            "variables and the file go before them"
        ),
    ] = ""
    nats_url: Annotated[str, Meta(description="URL of a NATS server to use; by default the system starts its own")] = ""
    start_timeout_s: Annotated[
        float, Meta(description="Seconds that all processes and models together may take to become ready", gt=0)
    ] = 300.0
    kill_hung_s: Annotated[
        float,
        Meta(
            description="Seconds after which a process that was declared dead but still runs is killed and started "
            "again, if it has not joined again; 0 leaves it alone, for a debugger",
            ge=0,
        ),
    ] = 1.0
    system_bind: Annotated[
        str,
        Meta(
            description="HOST:PORT of the first process's system port (/live, /ready and /metrics, without keys); the "
            "others take the ports after it, and 0 takes free ones, which `livescale metrics --targets` lists",
            pattern=HOST_AND_PORT,
        ),
    ] = "127.0.0.1:0"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Least severe level of log events that are printed"),
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"],
        Meta(description="Format of log events on stderr: text, or JSON objects and nothing else"),
    ] = "text"
