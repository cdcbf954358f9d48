"""Both ends of disaggregation at one worker. Every worker has both, whatever its role: the router chooses."""

import structlog

from livescale.services.worker.disaggregation.context import KvContext, KvTransferCounts
from livescale.services.worker.disaggregation.decode import DecodeSide
from livescale.services.worker.disaggregation.prefill import PrefillSide
from livescale.services.worker.instance.context import WorkerContext
from livescale.services.worker.instance.held import HeldInstance
from livescale.services.worker.instance.loading import KvFirst
from livescale.shared.bus.contract import Ack, Context
from livescale.shared.messages.disaggregation import ChangeRole

log = structlog.get_logger()


class Disaggregation:
    """What this worker prefills for others, and what it decodes for others."""

    def __init__(self, worker: WorkerContext, instance: HeldInstance, kv_first: KvFirst, *, by_layer: bool) -> None:
        context = KvContext(worker, instance, KvTransferCounts(worker.world.telemetry), kv_first)
        self._instance = instance
        self.prefill = PrefillSide(context, by_layer=by_layer)
        self.decode = DecodeSide(context)
        instance.on_decode_elsewhere = self.prefill.expect

    async def change_role(self, command: ChangeRole, context: Context) -> Ack:
        """Answer CHANGE_ROLE: say another role in reports. Nothing else changes, so what is under way goes on.

        Raises Refusal 409 for another instance.
        """
        lifecycle = self._instance.lifecycle
        before = None if lifecycle.assignment is None else lifecycle.assignment.role
        lifecycle.change_role(command.instance, command.role)
        if before != command.role:
            log.info("role_changed", instance=command.instance, role=command.role, before=before)
            self._instance.changed()
        return Ack()

    def lost(self, worker: str) -> None:
        """The registry has declared this worker dead."""
        self.prefill.lost(worker)
        self.decode.lost(worker)

    async def end(self, reason: str) -> None:
        """Send nothing, and keep nothing for others. Once this returns nothing is written into the KV cache."""
        await self.prefill.end()
        await self.decode.end(reason)
