"""A request on its way from a target to this source: this worker's once the target has heard that it is here."""

import structlog

from services.worker.batch import Entry
from services.worker.engine.sizes import activation_bytes, kv_bytes
from services.worker.live.handoff import ACTIVATION, KV, Channel, receive
from services.worker.live.parts import Parts
from services.worker.scheduler import Scheduler
from services.worker.sequence import LateKv
from shared.bus.contract import BusError, Refusal
from shared.deadlines import arrived
from shared.links.contract import LinkError, Peer
from shared.messages.live import Task, Took
from shared.messages.parameters import Manifest
from shared.subjects import TOOK

TOOK_SECONDS = 2.0

log = structlog.get_logger()


class Taking:
    """One hand-off, of a request to a model of this `manifest`, to those of `scheduler`: `own`, `begin`, `finish`."""

    def __init__(self, parts: Parts, scheduler: Scheduler, manifest: Manifest, channel: Channel, task: Task) -> None:
        self._parts = parts
        self._scheduler = scheduler
        self._manifest = manifest
        self._channel = channel
        self._task = task
        self._request = arrived(task.request, parts.world.clock.wall())
        self._positions = len(task.request.prompt) + len(task.request.generated)
        self._peer: Peer | None = None
        self._late: LateKv | None = None

    async def own(self) -> bool:
        """Have the activation, and the target's word: then the request is this worker's. False where it was declined,
        True also where the target had the last word."""
        try:
            self._check()
            entry = await self._receive_activation() if self._task.layers else None
        except (Refusal, LinkError) as error:
            await self._tell(str(error))
            return False
        if not await self._tell(None):
            return True
        if self._parts.serving.scheduler is not self._scheduler:
            self._parts.serving.disown([self._request], "its new worker stopped serving")
            return True
        if self._request.request_id not in self._scheduler:  # else it came back to who had it already
            self._late = self._parts.serving.adopt(self._scheduler, self._request, entry, self._task.waited)
            self._hold(True)
        self._parts.counts.pulled.inc()
        self._parts.counts.pulled_layers.inc(self._task.layers)
        log.info("request_taken", request=self._request.request_id, of=self._channel.other.id, layers=self._task.layers)
        return True

    def begin(self) -> None:
        """Have it run, if it is here."""
        self._hold(False)
        self._parts.serving.wake()

    async def finish(self) -> None:
        """Have the KV too; where it does not come, all is computed again."""
        if self._late is None or self._peer is None:
            return
        data = None
        try:
            data = await receive(self._peer, KV, self._task.kv_bytes)
            self._parts.counts.received.inc(self._task.activation_bytes + self._task.kv_bytes)
        except LinkError as error:
            self._parts.counts.kv_lost.inc()
            log.warning("kv_lost", request=self._request.request_id, of=self._channel.other.id, error=str(error))
        self._scheduler.kv_came(self._request.request_id, self._late, data)
        self._parts.serving.wake()

    async def close(self) -> None:
        """The target learns that nothing more is taken."""
        if self._peer is not None:
            await self._peer.close()

    def _hold(self, held: bool) -> None:
        sequence = self._scheduler.get(self._request.request_id)
        if sequence is not None:
            sequence.held = held

    def _check(self) -> None:
        """Raises Refusal for what cannot go on here."""
        self._scheduler.check(self._request)
        task, positions = self._task, self._positions
        if task.layers > self._manifest.config.num_hidden_layers:
            raise Refusal(400, f"layers: {task.layers} are done of {self._manifest.config.num_hidden_layers}")
        if task.layers:
            block_tokens = self._scheduler.limits.kv_block_tokens
            expected = (
                activation_bytes(self._manifest, positions),
                kv_bytes(self._manifest, positions, task.layers, block_tokens),
            )
            if (task.activation_bytes, task.kv_bytes) != expected:
                raise Refusal(
                    400, f"activation_bytes, kv_bytes: {task.activation_bytes}, {task.kv_bytes}, not {expected}"
                )

    async def _receive_activation(self) -> Entry:
        clock, began = self._parts.world.clock, self._parts.world.clock.now()
        self._peer = await self._channel.connect()
        data = await receive(self._peer, ACTIVATION, self._task.activation_bytes)
        self._parts.counts.seconds.observe(clock.now() - began)
        return Entry(self._task.layers, self._positions, data)

    async def _tell(self, declined: str | None) -> bool:
        """Whether the request is not the target's any more. One that says nothing may have heard, and then nobody else
        has it: if not, both make the same tokens."""
        took = Took(
            worker=self._parts.me,
            ticket=self._channel.ticket,
            request_id=self._request.request_id,
            declined=declined,
        )
        try:
            await self._parts.world.bus.call(TOOK, took, timeout=TOOK_SECONDS, id=self._channel.other.id)
        except BusError as error:
            log.warning("hand_off_in_doubt", request=took.request_id, of=self._channel.other.id, error=str(error))
            return not (isinstance(error, Refusal) and error.code == 409)
        return True
