"""The settings of the registry, each a flag of `livescale run registry`."""

from typing import Annotated, Literal

from msgspec import Meta

from livescale.services.registry.host_caches import HostCaches
from livescale.shared.messages.model_spec import ModelSpec, ReasoningParser, ToolCallParser
from livescale.shared.messages.parameters import KvCacheDType
from livescale.shared.runtime.settings import HostCacheName, HostCacheTtl, ProcessSettings, TopologyName

UNSAID = "the default for models that are registered without it"


class RegistrySettings(ProcessSettings, frozen=True, kw_only=True):
    """The registry: membership, leases, models."""

    suspect_seconds: Annotated[
        float, Meta(description="Seconds without a heartbeat after which a process is suspected to be dead", gt=0)
    ] = 1.5
    dead_seconds: Annotated[
        float, Meta(description="Seconds without a heartbeat after which a process is declared dead", gt=0)
    ] = 2.5
    topology: TopologyName = ""
    host_cache: HostCacheName = "pool"
    host_cache_ttl: HostCacheTtl = 300.0
    dtype: Annotated[
        Literal["float32", "bfloat16"], Meta(description=f"Number type of parameters and arithmetic; {UNSAID}")
    ] = "bfloat16"
    layout: Annotated[
        Literal["plain", "panels"],
        Meta(description=f"Order of bfloat16 matrices: plain, or panels where all workers have CPUs; {UNSAID}"),
    ] = "plain"
    kv_cache_dtype: Annotated[
        KvCacheDType,
        Meta(description=f"How keys and values are kept: as they are computed, or rounded to e4m3; {UNSAID}"),
    ] = "auto"
    min_instances: Annotated[int, Meta(description=f"Fewest instances of a model; {UNSAID}", ge=0)] = 1
    max_instances: Annotated[int, Meta(description=f"Most instances of a model; {UNSAID}", ge=1)] = 1_000
    downscale_delay_s: Annotated[
        float, Meta(description=f"Seconds that an instance must be idle before it is given back; {UNSAID}", ge=0)
    ] = 5.0
    max_model_len: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description=f"Most tokens of a request, by default the checkpoint's limit; {UNSAID}"),
    ] = None
    tool_call_parser: Annotated[
        ToolCallParser | None,
        Meta(description=f"How a model writes calls of tools, by default as its chat template says; {UNSAID}"),
    ] = None
    reasoning_parser: Annotated[
        ReasoningParser | None,
        Meta(description=f"How a model writes its reasoning, by default as its chat template says; {UNSAID}"),
    ] = None
    tensor_parallel_size: Annotated[
        int, Meta(description=f"Number of workers that make up an instance; {UNSAID}", ge=1, le=64)
    ] = 1

    def host_caches(self) -> HostCaches:
        """The policy by which hosts keep copies of models."""
        return HostCaches(self.host_cache, self.host_cache_ttl)

    def default_spec(self) -> ModelSpec:
        """What is not said of a model that is new: its name and path are empty."""
        return ModelSpec(
            name="",
            path="",
            dtype=self.dtype,
            layout=self.layout,
            kv_cache_dtype=self.kv_cache_dtype,
            min_instances=self.min_instances,
            max_instances=self.max_instances,
            downscale_delay_s=self.downscale_delay_s,
            max_model_len=self.max_model_len,
            tensor_parallel_size=self.tensor_parallel_size,
            tool_call_parser=self.tool_call_parser,
            reasoning_parser=self.reasoning_parser,
        )
