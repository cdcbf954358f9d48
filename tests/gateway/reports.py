"""A model, a worker and other members of a system, as the registry tells the gateway of them."""

from pathlib import Path

from livescale.shared.messages.membership import EngineLoad, Holding, Member, WorkerReport
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import ModelEntry

WORKER = "worker-1"


CONTEXT_TOKENS = 256


def member(service: str, id: str) -> Member:
    return Member(service=service, id=id, pid=1, host="here", epoch=1, lease="alive")  # type: ignore[arg-type]


def entry(checkpoint: Path) -> ModelEntry:
    spec = ModelSpec(name="tiny", path=str(checkpoint))
    return ModelEntry(
        spec=spec,
        state="ready",
        version="v1",
        size_bytes=1,
        blocks=5,
        max_model_len=CONTEXT_TOKENS,
        created=1_700_000_000,
    )


def worker() -> WorkerReport:
    return WorkerReport(
        id=WORKER,
        epoch=1,
        state="serving",
        model="tiny",
        version="v1",
        instance="instance-1",
        role="colocated",
        holding=Holding(model="tiny", version="v1", ready=[0, 1, 2, 3, 4], total=5),
        load=EngineLoad(
            waiting_requests=0,
            waiting_tokens=0,
            running_requests=0,
            max_requests=16,
            kv_blocks_used=0,
            kv_blocks_total=100,
            kv_block_tokens=16,
        ),
    )
