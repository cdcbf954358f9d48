"""A model as an operator declares it: where it lies, how it is kept, and how it is scaled."""

from typing import Annotated, Literal

from msgspec import Meta

from livescale.shared.messages.message import Amount, Count, Message, Name, Positive
from livescale.shared.messages.parameters import DType, KvCacheDType, Layout

Share = Annotated[float, Meta(ge=0, le=1e3)]
TensorParallelSize = Annotated[int, Meta(ge=1, le=64)]
Form = tuple[DType, Positive, Layout, KvCacheDType]  # of parameters in memory; the number is that of ranks
ModelPriority = Annotated[int, Meta(ge=-100, le=100)]
Path = Annotated[str, Meta(max_length=4096, pattern=r"^[^\x00]*$")]
# Whether instances of a model prefill and decode apart; with auto the router decides.
Disaggregation = Literal["off", "on", "auto"]
# How a model writes calls of tools, and its reasoning.
ToolCallParser = Literal["none", "hermes", "llama3_json", "mistral", "qwen3_coder", "pythonic", "deepseek", "harmony"]
ReasoningParser = Literal["none", "think", "mistral", "harmony"]


class ScalingBounds(Message, frozen=True, kw_only=True):
    """BlitzScale's scaling bounds: what part of an instance's capacity may be used before one is added (hi) or
    given back (lo). `prefill_*` in seconds of queued prefill work per instance, `decode_*` as a share of KV blocks,
    `kv_*` in seconds of sending the KV that lies where it was prefilled."""

    prefill_lo: Share = 0.5
    prefill_hi: Share = 0.7
    decode_lo: Share = 0.75
    decode_hi: Share = 0.95
    kv_lo: Share = 0.4
    kv_hi: Share = 0.8


class ModelSpec(Message, frozen=True, kw_only=True):
    """What an operator declares of a model. `path` is a directory in Hugging Face format on the hosts.

    `downscale_delay_s`: how long fewer instances must have been enough before one is given back,
    `downscale_to_zero_delay_s` before the last one is.
    `max_model_len`: tokens a request may have, prompt and output together; None takes the checkpoint's own limit.
    `tensor_parallel_size`: how many workers make an instance, each with its shard of every layer.
    `layout`: how its parameters lie wherever they are kept, and are moved; `panels` is for workers on CPUs.
    `kv_cache_dtype`: how its keys and values are kept and moved.
    `priority`: where workers are short, models of a higher one are served first, from those of a lower one.
    `disaggregation`: whether its instances hand requests over to others that decode them; None as the system does.
    `tool_call_parser`, `reasoning_parser`: how it writes calls and reasoning; None as its chat template says.
    `base`: of an adapter, the model that it changes, and in `base_path` that model's directory. `path` is then a
    directory in peft's format, and instances of the base fetch the adapter when a request asks for it.
    """

    name: Name
    path: Path
    dtype: DType = "bfloat16"
    min_instances: Count = 1
    max_instances: Positive = 1_000
    bounds: ScalingBounds = ScalingBounds()
    upscale_delay_s: Amount = 0.0
    downscale_delay_s: Amount = 5.0
    downscale_to_zero_delay_s: Amount = 60.0
    max_model_len: Positive | None = None
    tensor_parallel_size: TensorParallelSize = 1
    layout: Layout = "plain"
    kv_cache_dtype: KvCacheDType = "auto"
    priority: ModelPriority = 0
    disaggregation: Disaggregation | None = None
    tool_call_parser: ToolCallParser | None = None
    reasoning_parser: ReasoningParser | None = None
    base: Name | None = None
    base_path: Path | None = None

    def disaggregation_in(self, system: Disaggregation) -> Disaggregation:
        """Whether its instances hand requests over, where the system's setting is `system`. Instances of several ranks
        do everything."""
        return "off" if self.tensor_parallel_size > 1 else self.disaggregation or system

    @property
    def form(self) -> Form:
        """What its version depends on besides its files: the dtype, for how many ranks it is cut, the layout, and how
        its keys and values are kept."""
        return self.dtype, self.tensor_parallel_size, self.layout, self.kv_cache_dtype
