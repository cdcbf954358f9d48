"""Settings of disaggregation that several services share."""

from typing import Annotated, Literal

from msgspec import Meta

DisaggregationName = Annotated[
    Literal["off", "on", "auto"],
    Meta(
        description="Whether instances of the role prefill hand requests over to others after their first token. off: "
        "every instance does everything; on: prompts go to instances that prefill, which send the KV to the instance "
        "that decodes, while they compute it. `livescale role` gives an instance another role; auto: the router gives "
        "roles, so that most of a model's recent requests would have kept --ttft-slo and --tbt-slo, or none"
    ),
]
PrefillShare = Annotated[
    float,
    Meta(
        description="With --disaggregation: share of a model's instances that prefill, as far as new ones can keep to "
        "it. The first one prefills, the second decodes. Not given: as many prefill, and as many decode, as the load "
        "needs, and instances change roles with it",
        ge=0,
        le=1,
    ),
]
DecodeScaling = Annotated[
    Literal["mutate", "load"],
    Meta(
        description="With --disaggregation: where more instances are to decode. mutate: some that prefill decode from "
        "the next request on, and others are loaded to prefill in their place, which can begin while they load; load: "
        "new ones are loaded to decode, and only those that prefill and are not needed there change"
    ),
]
PreScaleDecode = Annotated[
    bool,
    Meta(
        description="With --disaggregation: count prompts that wait, and KV that is still to be sent, as need for "
        "instances that decode, so that they are there once those prompts are computed"
    ),
]
KvTransferMode = Annotated[
    Literal["by-layer", "by-request"],
    Meta(
        description="With --disaggregation: when KV leaves the worker that prefills. by-layer: as each layer of it is "
        "computed; by-request: once the whole prompt is"
    ),
]
