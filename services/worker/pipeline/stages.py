"""The stages of a pipeline that one worker runs, and its channels to their neighbours."""

import asyncio
from contextlib import AsyncExitStack

import structlog

from livescale.services.worker.pipeline.channels import close, reach
from livescale.services.worker.pipeline.kv_moves import KvMoves
from livescale.services.worker.pipeline.running import Running
from livescale.services.worker.pipeline.stage import StageRun
from livescale.shared.bus.contract import BusError
from livescale.shared.links.contract import Link, LinkError, Peer
from livescale.shared.messages.pipelines import Pipeline, PipelineOver, StageBatch, StageDone
from livescale.shared.messages.transfers import Node
from livescale.shared.subjects import PIPELINE_OVER, STAGE_DONE
from livescale.shared.transfer.flow_end import together

log = structlog.get_logger()


class StagesFailed(Exception):
    """Why this worker's stages can run no more batches."""


class Stages:
    """Those of one worker. `ready` is set once all neighbours were reached. `moves`: of KV, between any two workers."""

    def __init__(self, command: Pipeline, running: Running, link: Link) -> None:
        self.command = command
        self.ready = asyncio.Event()
        self.moves = KvMoves(command, running, link)
        self._me, self._bus = running.parts.me, running.parts.world.bus
        self._link = link
        self._runs = {
            index: StageRun(running, command, index)
            for index, stage in enumerate(command.stages)
            if stage.node.id == self._me
        }
        self._failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def leader(self) -> Node:
        return self.command.stages[0].node

    @property
    def leads(self) -> bool:
        return self.leader.id == self._me

    @property
    def others(self) -> list[str]:
        """Who runs the other stages."""
        return sorted({stage.node.id for stage in self.command.stages} - {self._me})

    @property
    def span(self) -> str:
        """The blocks of all its stages, in words."""
        stages = [self.command.stages[index] for index in self._runs]
        return ", ".join(f"{stage.first}-{stage.stop - 1}" for stage in stages)

    @property
    def layers(self) -> int:
        """That are run here: the blocks without embedding and head."""
        last = self.command.stages[-1].stop - 1
        return sum(0 < block < last for index in self._runs for block in self._blocks(index))

    def take(self, batch: StageBatch) -> None:
        """A batch for one of them. What cannot be run ends them all."""
        run = self._runs.get(batch.stage)
        try:
            if run is None:
                raise ValueError(f"stage: {batch.stage} is none of this worker's")
            run.take(batch)
        except ValueError as error:
            self.fail(str(error))

    def fail(self, reason: str) -> None:
        """Have `run` raise this."""
        if not self._failed.done():
            self._failed.set_result(reason)

    def tell_over(self, reason: str) -> None:
        """The others, or who leads them, that it ends here."""
        id = self.command.id
        if not self.leads:
            self._bus.publish(STAGE_DONE, StageDone(pipeline=id, step=1, error=reason), id=self.leader.id)
            return
        for worker in self.others:
            self._bus.publish(PIPELINE_OVER, PipelineOver(pipeline=id, reason=reason), id=worker)

    async def run(self) -> None:
        """Until cancelled. Raises StagesFailed."""
        try:
            async with AsyncExitStack() as closing:
                peers = await self._connect(closing)
                self.ready.set()
                runs = (run.run(peers.get(index), peers.get(index + 1)) for index, run in self._runs.items())
                await together(*runs, self.moves.run(), self._fail())
        except (LinkError, BusError, ValueError, RuntimeError, MemoryError) as error:
            raise StagesFailed(str(error) or type(error).__name__) from error

    async def _fail(self) -> None:
        raise StagesFailed(await self._failed)

    def _blocks(self, index: int) -> range:
        stage = self.command.stages[index]
        return range(stage.first, stage.stop)

    async def _connect(self, closing: AsyncExitStack) -> dict[int, Peer]:
        """To each neighbour, by the later of the two stages. In the order of stages, so that two workers open theirs in
        the same one."""
        peers = {}
        stages = self.command.stages
        for later in range(1, len(stages)):
            for mine, other in ((later, later - 1), (later - 1, later)):
                if mine in self._runs:
                    peers[later] = await reach(self._link, self.command, stages[other].node.address, str(later))
                    closing.push_async_callback(close, peers[later])
        return peers
