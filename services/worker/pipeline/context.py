"""What all stages of a pipeline at one worker run with, and the channels to its other workers."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from zlib import crc32

from livescale.services.worker.engine.contract import RankLost, StageResult
from livescale.services.worker.handoff import CONNECT_SECONDS
from livescale.services.worker.live.parts import Parts
from livescale.services.worker.metrics import PipelineCounts
from livescale.services.worker.scheduling.batch import ScheduledChunk
from livescale.services.worker.scheduling.limits import SchedulerLimits
from livescale.services.worker.scheduling.rates import TokenRate
from livescale.shared.links.contract import Link, LinkError, Peer
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.pipelines import Pipeline, StageDone
from livescale.shared.runtime.settings import SwitchKv

# They are numbered above those of hand-offs.
FIRST_CHANNEL = 1 << 25
CHANNELS = 1 << 24


async def reach(link: Link, command: Pipeline, address: bytes, purpose: str) -> Peer:
    """The other end, which names the same `purpose`. Raises LinkError."""
    number = FIRST_CHANNEL + crc32(f"{command.id}/{purpose}".encode()) % CHANNELS
    return await link.connect(address, timeout=CONNECT_SECONDS, channel=number, secret=command.secret)


async def close(peer: Peer) -> None:
    """Also one that is broken."""
    with suppress(LinkError):
        await peer.close()


LEAST_BYTES = 1 << 16  # of less, it is latency that is measured


@dataclass(frozen=True)
class StageContext:
    """`done` takes what comes out of the last stage; `is_whole` says whether this worker, and those that it leads, have
    the whole model by now. `changed` has it told how it gets KV (`switch_kv`). `link_rate`: bytes a second to or from
    another worker."""

    parts: Parts
    counts: PipelineCounts
    manifest: Manifest
    limits: SchedulerLimits
    done: Callable[[StageDone], None]
    is_whole: Callable[[], bool]
    switch_kv: SwitchKv
    changed: Callable[[], None]
    link_rate: TokenRate = field(default_factory=TokenRate)

    async def run_blocks(self, blocks: range, pieces: Sequence[ScheduledChunk], activation: memoryview) -> StageResult:
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
