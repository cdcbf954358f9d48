"""What a PIPELINE may ask for of a worker that loads. Pure."""

from collections.abc import Collection
from itertools import pairwise

from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.pipelines import Pipeline


def check_pipeline(command: Pipeline, worker: str, manifest: Manifest, ready: Collection[int], kv_blocks: int) -> None:
    """For a `worker` that has these blocks `ready`. Raises Refusal: 400 for stages that are no pipeline of this model,
    409 for what is not here."""
    if command.version != manifest.version:
        raise Refusal(409, f"version: this worker loads {manifest.version}, not {command.version}")
    edges = [0, *(stage.stop for stage in command.stages)]
    starts = [*(stage.first for stage in command.stages), len(manifest.blocks)]
    if edges != starts or any(stage.first >= stage.stop for stage in command.stages):
        raise Refusal(400, f"stages: they begin at {starts[:-1]} and end at {edges[1:]} of {len(manifest.blocks)}")
    if any(one.node.id == other.node.id for one, other in pairwise(command.stages)):
        raise Refusal(400, "stages: two neighbours are of one worker")
    missing = sorted(_needed(command, worker, manifest) - set(ready))
    if missing:
        raise Refusal(409, f"stages: block {missing[0]} is not ready here")
    if command.kv_blocks > kv_blocks:
        raise Refusal(409, f"kv_blocks: there are {kv_blocks} here, not {command.kv_blocks}")


def _needed(command: Pipeline, worker: str, manifest: Manifest) -> set[int]:
    mine = [stage for stage in command.stages if stage.node.id == worker]
    if len(command.stages) < 2 or not mine:
        raise Refusal(400, f"stages: {len(command.stages)} of them, and {len(mine)} of {worker}")
    blocks = {block for stage in mine for block in range(stage.first, stage.stop)}
    has_head = mine[-1].stop == len(manifest.blocks)
    return blocks | {0} if has_head and manifest.config.tie_word_embeddings else blocks
