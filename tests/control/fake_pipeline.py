"""What a fake worker does in an execution pipeline: its leader makes tokens while all its workers are there."""

import asyncio
from typing import TYPE_CHECKING

from livescale.shared.bus.contract import Ack, Context, Refusal
from livescale.shared.messages.model_parallel import Pipeline, PipelineOver
from livescale.shared.subjects import PIPELINE_OVER

if TYPE_CHECKING:
    from tests.control.fake_worker import FakeWorker

SHARE_SECONDS = 2.0


class FakePipeline:
    """A worker's part in one pipeline at a time. `shares` says that others may take over its requests, as it is over;
    `formed` lists all pipelines that it was in."""

    def __init__(self, worker: "FakeWorker") -> None:
        self.command: Pipeline | None = None
        self.formed: list[Pipeline] = []
        self.shares = False
        self._led_by: str | None = None  # the last one
        self._worker = worker

    @property
    def id(self) -> str | None:
        return None if self.command is None else self.command.id

    @property
    def span(self) -> str:
        stages = [] if self.command is None else self.command.stages
        return ", ".join(f"{one.first}-{one.stop - 1}" for one in stages if one.node.id == self._worker.id)

    @property
    def leads(self) -> bool:
        return self.command is not None and self.command.stages[0].node.id == self._worker.id

    async def form(self, pipeline: Pipeline, context: Context) -> Ack:
        worker = self._worker
        worker.check_epoch(pipeline.epoch)
        if worker.faults.refuse_pipelines or worker.state != "loading" or self.id not in (None, pipeline.id):
            raise Refusal(409, f"the worker is {worker.state}, in {self.id}")
        held = worker.lifecycle.ready
        own = [one for one in pipeline.stages if one.node.id == worker.id]
        assert all(held.issuperset(range(one.first, one.stop)) for one in own), "nobody runs what it lacks"
        assert worker.order is not None
        assert worker.order.plan_id == pipeline.plan_id
        self.command = pipeline
        self.formed.append(pipeline)
        if self.leads:
            worker.lifecycle.go_live()
        worker.membership.changed()
        return Ack()

    def is_whole(self) -> bool:
        """Whether every stage is where it should be."""
        others = [] if self.command is None else [one.node.id for one in self.command.stages]
        found = [self._worker.fabric.get(id) for id in others]
        return all(one is not None and getattr(one, "stages", self).id == self.id for one in found)

    def over(self, over: PipelineOver) -> None:
        if over.pipeline == self.id:
            self.end(over.reason)

    def end(self, reason: str) -> None:
        """The leader gives its requests back, and goes on loading."""
        led, command = self.leads, self.command
        self.command = None
        self._led_by = None if command is None or led else command.stages[0].node.id
        if led:
            self._worker.engine.give_back(reason)
            self._worker.lifecycle.go_back()
        self._worker.membership.changed()

    def serve(self) -> None:
        """Serve alone from now on; the former leader has requests for the others."""
        if self.command is None:
            self.fetch()
            return
        others = {one.node.id for one in self.command.stages} - {self._worker.id}
        over = PipelineOver(pipeline=self.command.id, reason=f"{self._worker.id} serves by itself")
        for id in sorted(others):
            self._worker.bus.publish(PIPELINE_OVER, over, id=id)
        self.shares, self.command = self.leads, None
        if self.shares:
            asyncio.get_running_loop().call_later(SHARE_SECONDS, self.keep)

    def fetch(self) -> None:
        """Serve, and take over the requests that are kept for this worker."""
        if self._led_by is not None:
            self._worker.engine.begin_to_help(self._led_by)
            self._led_by = None

    def keep(self) -> None:
        self.shares = False

    def forget(self) -> None:
        self.command, self.shares, self._led_by = None, False, None
