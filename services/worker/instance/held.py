"""The instance that a worker holds: its parameters, its state, and what the worker tells of both."""

import asyncio
from collections.abc import Callable
from typing import Literal

from livescale.services.worker.instance.lifecycle import Lifecycle, WorkerState
from livescale.services.worker.instance.loading import Loading
from livescale.services.worker.instance.serving import ServingLoop
from livescale.services.worker.scheduling.limits import SchedulerLimits
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.bus.contract import Ack, Context, Refusal
from livescale.shared.messages.requests import Admit, AskRunning, RunningRequests, arrived
from livescale.shared.messages.transfers import InstanceServing, Load, Send, Serve
from livescale.shared.process.run import World
from livescale.shared.subjects import INSTANCE


class HeldInstance:
    """What a worker takes requests for.

    `loading` are the parameters that are here or on their way. `changed` has the worker report itself at once.
    `limits` tells how many requests and tokens a worker with so many KV blocks takes for this model.
    `moved_requests` are those that others went on with after they were decoded here. `kept` says by request why it
    stayed here, though another was to go on with it.
    """

    def __init__(
        self,
        world: World,
        limits: Callable[[Load, int], SchedulerLimits],
        serving: ServingLoop,
        changed: Callable[[], None],
    ) -> None:
        self.lifecycle = Lifecycle()
        self.loading: Loading | None = None
        self.changed = changed
        self.serving = serving
        self._world = world
        self.limits = limits
        self.moved_requests = 0
        self.kept: dict[str, str] = {}
        # Disaggregation: the request that was just admitted is to be decoded by this other worker.
        self.on_decode_elsewhere: Callable[[str, str], None] = lambda request_id, decode: None

    async def admit(self, command: Admit, context: Context) -> Ack:
        """Answer ADMIT: take a request, which may be for another worker to decode. Raises Refusal 409 while its model
        is not served, and as `ServingLoop` does."""
        request = arrived(command.request, self._world.clock.wall())
        if not self.lifecycle.accepts_requests(request.model):
            raise Refusal(409, f"this worker takes no requests for {request.model}: it is {self.lifecycle.state}")
        self.serving.admit(request)
        if command.decode is not None:
            self.on_decode_elsewhere(request.request_id, command.decode)
        await asyncio.sleep(0)  # an idle engine begins its step before the answer is encoded and sent
        return Ack()

    async def tell_running(self, ask: AskRunning, context: Context) -> RunningRequests:
        """Answer RUNNING: tell a router that is new every request that is here, and which ended lately: it may yet hear
        that they came here."""
        return RunningRequests(requests=self.serving.running(), ended=self.serving.frames.history.ended())

    def find(self, wanted: Send) -> Loading:
        """The parameters that the worker is to send. Raises Refusal 409 where it holds others, or none."""
        loading = self.loading
        if loading is None or (loading.manifest.version, loading.manifest.shard) != (wanted.version, wanted.shard):
            held = "nothing" if loading is None else loading.manifest.held_as
            what = f"version {wanted.version}" + (f", shard {wanted.shard}" if wanted.shard else "")
            raise Refusal(409, f"cannot send {what}: this worker holds {held}")
        return loading

    def serves(self, version: str) -> Loading:
        """The parameters of this version, which the worker serves whole. Raises Refusal 409 where it does not."""
        loading, state = self.loading, self.lifecycle.state
        if loading is None or state is not WorkerState.SERVING or loading.manifest.version != version:
            raise Refusal(409, f"version: {version} is not served here, this worker is {state}")
        return loading

    async def recall(self, command: Serve, draining: asyncio.Task[None] | None) -> None:
        """Drain no more, if this is what the command wants. Raises Refusal 409 where it has let go of the model."""
        if self.lifecycle.state is not WorkerState.DRAINING or not command.recall or draining is None:
            return
        if self.serving.scheduler is None:
            raise Refusal(409, f"cannot recall {command.instance}: it has drained")
        draining.cancel()
        await asyncio.wait([draining])

    def open(self, loading: Loading, *, whole: bool, kv_blocks: int | None = None) -> Scheduler:
        """Take requests from now on. The model is `whole`, or layers are still missing."""
        self.moved_requests, self.kept = 0, {}
        limits = self.limits(loading.command, kv_blocks or loading.kv_blocks)
        scheduler = self.serving.open(loading.command.model, loading.manifest.version, limits, whole=whole)
        self.serving.on_first_token = lambda: self.tell("first_token")
        return scheduler

    def go_live(self, loading: Loading, kv_blocks: int | None = None) -> Scheduler:
        """Move from loading to live, and take requests. Raises Refusal 409 in any other state."""
        self.lifecycle.go_live()
        return self.open(loading, whole=False, kv_blocks=kv_blocks)

    def go_back(self, reason: str) -> None:
        """Move from live to loading. Gateways submit the requests that are here again."""
        self.serving.lose(reason)
        self.serving.close()
        if self.lifecycle.state is WorkerState.LIVE:
            self.lifecycle.go_back()
        self.changed()

    def tell(self, what: Literal["serving", "first_layer", "first_token", "spare"]) -> None:
        """Publish what has happened to the instance, if there is one."""
        assignment = self.lifecycle.assignment
        if assignment is None:
            return
        kept = list(self.kept.values()) if what == "spare" else []
        event = InstanceServing(
            instance=assignment.instance,
            model=assignment.model,
            worker=self._world.info.id,
            plan_id=assignment.plan_id,
            what=what,
            at=self._world.clock.wall(),
            unasked_seconds=(self.serving.unasked_seconds or 0.0) if what == "first_token" else 0.0,
            moved_requests=self.moved_requests if what == "spare" else 0,
            kept_requests=len(kept),
            kept_because=kept[-1] if kept else "",
        )
        self._world.bus.publish(INSTANCE, event, instance=assignment.instance)
