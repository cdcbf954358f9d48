"""Requests on their way from a target to this source. Each is this worker's once the target hears that it is here."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import cast

import structlog

from livescale.services.worker.instance.context import ACTIVATION, KV, Channel, receive_into
from livescale.services.worker.live.context import LiveContext
from livescale.services.worker.scheduling.batch import (
    PROMPT_CUT,
    LayerEntry,
    activation_bytes,
    kv_bytes,
    share_left,
)
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.services.worker.scheduling.sequence import Filled, LateKv, Sequence
from livescale.shared.bus.contract import Refusal
from livescale.shared.links.contract import LinkError, Peer
from livescale.shared.messages.live import Pulled, Task, Took
from livescale.shared.messages.parameters import Manifest
from livescale.shared.runtime.waiting import together

TOGETHER_SECONDS = 0.25  # that requests are kept for those that came with the same pull

log = structlog.get_logger()


class IncomingHandOff:
    """One request on its way here, for `scheduler`, which runs a model of this `manifest`.

    Call `own`, then `begin` and `finish`, and `close` in any case. `task` is one of those that were `pulled`. `tell`
    tells the target whether it was taken, and returns whether it is no longer the target's.
    """

    def __init__(
        self,
        manifest: Manifest,
        scheduler: Scheduler,
        channel: Channel,
        task: Task,
        pulled: Pulled,
        context: LiveContext,
        tell: Callable[[str, Took], Awaitable[bool]],
    ) -> None:
        self._context = context.worker
        self._serving = context.serving
        self._group = context.group
        self._counts = context.counts
        self._tell_target = tell
        self._scheduler = scheduler
        self._manifest = manifest
        self._channel = channel
        self._task = task
        self._ranks = pulled.ranks
        self._request = context.worker.arrived(task.request)
        self._positions = len(task.request.prompt) + len(task.request.generated)
        self._peer: Peer | None = None
        self._late: LateKv | None = None
        self._sequence: Sequence | None = None
        self._begun = False
        self._began = context.worker.clock.now()
        self._error: str | None = None
        self._is_abandoned = False
        self._patience: asyncio.Timeout | None = None  # with what is being received

    @property
    def request_id(self) -> str:
        return self._request.request_id

    @property
    def target(self) -> str:
        return self._channel.other.id

    def needs(self, worker: str) -> bool:
        """Return whether something of this request is to come from that worker."""
        return worker == self.target or any(worker == node.id for node in self._ranks)

    def abandon(self) -> None:
        """Stop waiting for the target, which is dead. A link may not notice that for long."""
        if not self._is_abandoned and self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time())
        self._is_abandoned = True

    async def own(self) -> bool:
        """Receive the activation and tell the target. Returns whether the target may not have the request any more.

        It is False where this worker declined the request or could not have it, and True also where the target had the
        last word.
        """
        clock, began = self._context.clock, self._began
        try:
            self._check()
            entry = await self._receive_activation() if self._task.layers else None
        except (Refusal, LinkError) as error:
            self._error = "declined"
            if not self._is_abandoned:
                await self._tell(str(error))
            return False
        if not await self._tell(None):
            return True
        if self._serving.scheduler is not self._scheduler:
            self._serving.disown([self._request], "its new worker stopped serving")
            return True
        if self.request_id not in self._scheduler:  # otherwise it came back to the worker that had it already
            task = self._task
            filled = Filled(task.first_block, task.filled) if task.filled else None
            self._late = self._serving.adopt(self._scheduler, self._request, entry, filled, task.waited)
            self._sequence = self._scheduler.get(self.request_id)
            self._hold()
        self._counts.pulled.inc()
        self._counts.pulled_layers.inc(self._task.layers)
        log.info(
            "request_taken",
            request=self.request_id,
            of=self.target,
            layers=self._task.layers,
            seconds=clock.now() - began,
        )
        return True

    def begin(self) -> None:
        """Have the request run, now or as soon as it is here."""
        self._begun = True
        self._hold()
        self._serving.wake()

    def _hold(self) -> None:
        if self._sequence is not None:
            self._sequence.held = not self._begun

    async def finish(self) -> None:
        """Receive the KV too. Where it does not come, all is computed again."""
        if self._late is None or self._peer is None:
            return
        data = None
        try:
            data = await self._patiently(self._receive_kv(self._peer))
            self._counts.received.inc(self._task.activation_bytes + self._task.kv_bytes)
        except LinkError as error:
            sequence = self._scheduler.get(self.request_id)
            if sequence is not None and sequence.late is self._late:  # else it has ended, or begins anew
                self._counts.kv_lost.inc()
                self._error = "kv_lost"
                log.warning("kv_lost", request=self.request_id, of=self.target, error=str(error))
        self._scheduler.kv_came(self.request_id, self._late, data)
        self._serving.wake()

    async def close(self) -> None:
        """Close the channel, from which the target learns that nothing more is taken."""
        if self._peer is not None:
            await self._peer.close()
        ended, size_bytes = self._context.clock.now(), self._task.activation_bytes + self._task.kv_bytes
        self._context.spans.taken(
            self._request,
            self.target,
            self._began,
            ended,
            layers=self._task.layers,
            size_bytes=size_bytes,
            error=self._error,
        )

    def _check(self) -> None:
        """Raise Refusal for a request that cannot go on here."""
        self._scheduler.check(self._request)
        if len(self._ranks) != len(self._group.leader.others):
            raise Refusal(400, f"ranks: {self.target} leads {len(self._ranks)}, not {len(self._group.leader.others)}")
        task, positions = self._task, self._positions
        is_cut = task.filled % PROMPT_CUT == 0 or task.filled >= len(task.request.prompt)
        if not (is_cut and task.filled < positions):
            raise Refusal(400, f"filled: {task.filled} of {positions} positions")
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

    async def _receive_activation(self) -> LayerEntry:
        clock = self._context.clock
        began = clock.now()
        data = await self._patiently(self._connect_and_receive())
        self._counts.seconds.observe(clock.now() - began)
        left = share_left(self._task.layers, self._manifest.config.num_hidden_layers)
        return LayerEntry(self._task.layers, self._positions, data, left)

    async def _connect_and_receive(self) -> memoryview:
        self._peer = await self._channel.connect()
        activation = self._context.runner.new_memory(self._task.activation_bytes)
        await receive_into(self._peer, ACTIVATION, activation)
        return cast("memoryview", activation)  # only a modelled engine has other memory, and knows it

    async def _receive_kv(self, peer: Peer) -> memoryview:
        """Receive this rank's part, and have each of the other ranks receive its own."""
        size_bytes = self._task.kv_bytes
        kv = self._context.runner.new_memory(size_bytes)
        others = self._group.leader.take(self.request_id, self._channel, self._ranks, size_bytes)
        await together(receive_into(peer, KV, kv), others)
        return cast("memoryview", kv)  # as above

    async def _patiently(self, work: Coroutine[None, None, memoryview]) -> memoryview:
        """Await `work`. Raises LinkError, also once the target is known to be dead."""
        try:
            async with asyncio.timeout(0 if self._is_abandoned else None) as self._patience:
                return await work
        except TimeoutError:
            raise LinkError(f"{self.target} is dead") from None
        finally:
            self._patience = None

    async def _tell(self, declined: str | None) -> bool:
        """Tell the target, and return whether the request is no longer the target's."""
        took = Took(
            worker=self._context.me,
            ticket=self._channel.ticket,
            request_id=self.request_id,
            declined=declined,
        )
        return await self._tell_target(self.target, took)


class HandOffBatch:
    """What came with one pull runs together: no request begins before the others are here, fail to come or are late."""

    def __init__(self, hand_offs: Collection[IncomingHandOff]) -> None:
        self._hand_offs = hand_offs
        self._missing = len(hand_offs)
        self._timer = asyncio.get_running_loop().call_later(TOGETHER_SECONDS, self._begin)

    def settled(self) -> None:
        """Note that one more of them is here, or does not come."""
        self._missing -= 1
        if not self._missing:
            self._timer.cancel()
            self._begin()

    def _begin(self) -> None:
        for hand_off in self._hand_offs:
            hand_off.begin()
