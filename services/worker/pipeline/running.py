"""What all stages of a pipeline at one worker run with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from livescale.services.worker.batch import Piece
from livescale.services.worker.engine.contract import RankLost
from livescale.services.worker.engine.partial import Passed
from livescale.services.worker.engine.rates import Rate
from livescale.services.worker.limits import Limits
from livescale.services.worker.live.parts import Parts
from livescale.services.worker.pipeline.counts import PipelineCounts
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.pipelines import StageDone
from livescale.shared.runtime.settings import SwitchKv

LEAST_BYTES = 1 << 16  # of less, it is latency that is measured


@dataclass(frozen=True)
class Running:
    """`done` takes what comes out of the last stage; `is_whole` says whether this worker, and those that it leads, have
    the whole model by now. `changed` has it told how it gets KV (`switch_kv`). `link_rate`: bytes a second to or from
    another worker."""

    parts: Parts
    counts: PipelineCounts
    manifest: Manifest
    limits: Limits
    done: Callable[[StageDone], None]
    is_whole: Callable[[], bool]
    switch_kv: SwitchKv
    changed: Callable[[], None]
    link_rate: Rate = field(default_factory=Rate)

    async def run_blocks(self, blocks: range, pieces: Sequence[Piece], activation: memoryview) -> Passed:
        """By all ranks of the instance. Raises what the engine raises; where a rank is lost, the instance is."""
        self.parts.ranks.leader.tell_blocks(blocks, pieces)
        try:
            return await self.parts.runner.run_blocks(blocks, pieces, activation)
        except RankLost as error:
            self.parts.serving.on_rank_lost(str(error))
            raise

    def moved(self, size_bytes: int, seconds: float) -> None:
        """Over the link, as measured at either end."""
        if size_bytes >= LEAST_BYTES:
            self.link_rate.observe(size_bytes, seconds)
