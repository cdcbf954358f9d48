"""The settings of a model of a whole system, and of an adapter."""

from typing import Annotated, Literal

from msgspec import Meta

from livescale.shared.messages.model_spec import ReasoningParser, ToolCallParser
from livescale.shared.messages.parameters import KvCacheDType
from livescale.shared.runtime.role_settings import DisaggregationName
from livescale.shared.runtime.settings import Settings


class Bounds(Settings, frozen=True, kw_only=True):
    """Scaling bounds of a model, as in `ScalingBounds`; here a misspelt key is refused."""

    prefill_lo: Annotated[float, Meta(ge=0)] = 0.5
    prefill_hi: Annotated[float, Meta(gt=0)] = 0.7
    decode_lo: Annotated[float, Meta(ge=0, le=1)] = 0.75
    decode_hi: Annotated[float, Meta(gt=0, le=1)] = 0.95
    kv_lo: Annotated[float, Meta(ge=0)] = 0.4
    kv_hi: Annotated[float, Meta(gt=0)] = 0.8


class ModelSettings(Settings, frozen=True, kw_only=True):
    """One model of the system. A field that is None is taken from the flag of the same name."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")]
    path: Annotated[str, Meta(min_length=1)]
    dtype: Literal["auto", "float32", "bfloat16"] | None = None
    kv_cache_dtype: KvCacheDType | None = None
    min_instances: Annotated[int, Meta(ge=0)] | None = None
    max_instances: Annotated[int, Meta(ge=1)] | None = None
    max_model_len: Annotated[int, Meta(ge=1)] | None = None
    tensor_parallel_size: Annotated[int, Meta(ge=1, le=64)] | None = None
    bounds: Bounds = Bounds()
    upscale_delay_s: Annotated[float, Meta(ge=0)] = 0.0
    downscale_delay_s: Annotated[float, Meta(ge=0)] | None = None
    downscale_to_zero_delay_s: Annotated[float, Meta(ge=0)] = 60.0
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    disaggregation: DisaggregationName | None = None
    tool_call_parser: ToolCallParser | None = None
    reasoning_parser: ReasoningParser | None = None


class LoraSettings(Settings, frozen=True, kw_only=True):
    """One adapter: its name, its directory in peft's format, and its base model, which may be left out where there is
    one model."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")]
    path: Annotated[str, Meta(min_length=1)]
    base: str | None = None
