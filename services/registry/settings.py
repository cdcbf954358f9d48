"""The settings of the registry."""

from typing import Annotated, Literal

from msgspec import Meta

from livescale.shared.messages.parameters import ModelSpec
from livescale.shared.settings import ProcessSettings, TopologyName

UNSAID = "for models that are registered without a word about it"


class RegistrySettings(ProcessSettings, frozen=True, kw_only=True):
    """The registry: membership, leases, models."""

    suspect_seconds: Annotated[float, Meta(description="Silence after which a process is suspected", gt=0)] = 1.5
    dead_seconds: Annotated[float, Meta(description="Silence after which a process is declared dead", gt=0)] = 2.5
    topology: TopologyName = ""
    dtype: Annotated[Literal["float32", "bfloat16"], Meta(description=f"Type that models run in; {UNSAID}")] = (
        "bfloat16"
    )
    layout: Annotated[
        Literal["plain", "panels"],
        Meta(description=f"How parameters lie; panels suits pools whose workers are all CPUs; {UNSAID}"),
    ] = "plain"
    min_instances: Annotated[int, Meta(description=f"Instances that a model keeps; {UNSAID}", ge=0)] = 1
    max_instances: Annotated[int, Meta(description=f"Most instances of a model; {UNSAID}", ge=1)] = 1_000
    max_model_len: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description=f"Tokens of a request; the checkpoint's limit when left out; {UNSAID}"),
    ] = None
    tensor_parallel_size: Annotated[int, Meta(description=f"Workers of an instance; {UNSAID}", ge=1, le=64)] = 1

    def default_spec(self) -> ModelSpec:
        """What is not said of a model that is new: its name and path are empty."""
        return ModelSpec(
            name="",
            path="",
            dtype=self.dtype,
            layout=self.layout,
            min_instances=self.min_instances,
            max_instances=self.max_instances,
            max_model_len=self.max_model_len,
            tensor_parallel_size=self.tensor_parallel_size,
        )
