"""How the KV of one request is brought to the worker that decodes it: reserve, send, offer, and once more."""

import asyncio
from collections.abc import Callable

import structlog
from msgspec.structs import replace

from livescale.services.worker.disaggregation.context import DATA, HEADER, PIECE_SECONDS, KvContext, tag
from livescale.services.worker.disaggregation.outgoing import KvSendRate, KvTransferState, OutgoingKv
from livescale.services.worker.disaggregation.pieces import StagedPiece
from livescale.services.worker.disaggregation.wire import pack_header, write_digest
from livescale.services.worker.instance.context import HandOffTickets
from livescale.services.worker.scheduling.batch import SPARE_BYTES, KvSlice
from livescale.shared.bus.contract import BusError, Refusal, ServiceAbsent
from livescale.shared.links.contract import Buffer, LinkError, Peer
from livescale.shared.messages.disaggregation import Reserve, Reserved, TakeOver
from livescale.shared.runtime.waiting import Changes
from livescale.shared.subjects import RESERVE, TAKE_OVER

ATTEMPTS = 3
CALL_SECONDS = 1.0
RETRY_SECONDS = 0.25

log = structlog.get_logger()


class KvSender:
    """Brings requests to the workers that decode them. `void` gives up what is kept for a request there."""

    def __init__(self, context: KvContext, void: Callable[[OutgoingKv, str], None]) -> None:
        self._context = context
        self._worker = context.worker
        self._serving = context.serving
        self._counts = context.counts
        self._void = void
        self.rate = KvSendRate()
        self.tickets = HandOffTickets(context.worker.clock.wall())

    async def run(self, one: OutgoingKv, changes: Changes) -> bool:
        """Returns whether the decode worker took the request. `changes` tell of steps, and of pieces of this request.

        After a failure it is asked once more, but only when the request is ready: blocks that are kept early may keep
        others waiting there. Where it then has no room, the request waits no longer. One that moves is decoded here in
        the meantime.
        """
        for attempt in range(ATTEMPTS):
            if attempt:
                self._go_on(one)
                await self._until_ready(one, changes)
                one.transfer.again()
            one.asked, one.is_reserved = None, False
            try:
                reserved = await self._reserve(one)
                one.is_reserved = True
                one.transfer.move(KvTransferState.SENDING)
                await self._send_all(one, reserved, changes)
                one.sequence.decodes_meanwhile = False
                await self._until_stopped(one, changes)
                one.transfer.move(KvTransferState.OFFERED)
                await self._offer(one)
            except (BusError, LinkError, RuntimeError) as error:
                asking, ready = one.transfer.state is KvTransferState.ASKING, one.sequence.has_sampled
                self._counts.failures.labels("refused" if asking else "broken").inc()
                log.warning("kv_transfer_failed", request=one.request_id, to=one.decode, error=str(error))
                if asking and isinstance(error, (Refusal, ServiceAbsent)):
                    one.asked = None  # nothing is kept there
                self._void(one, str(error))
                if asking and (ready or (isinstance(error, Refusal) and error.code != 429)):
                    return False
                one.transfer.move(KvTransferState.ASKING)
            else:
                return True
        return False

    async def _reserve(self, one: OutgoingKv) -> Reserved:
        sequence = one.sequence
        generated = sequence.tokens[sequence.prompt_tokens : one.transfer.positions]
        request = self._worker.leaving(replace(sequence.request, generated=generated))
        one.asked = Reserve(
            prefill=self._worker.node(),
            ticket=self.tickets.take(),
            secret=self._worker.world.ids.secret(),
            request=request,
            version=one.version,
        )
        return await self._worker.bus.call(RESERVE, one.asked, timeout=CALL_SECONDS, id=one.decode)

    async def _send_all(self, one: OutgoingKv, reserved: Reserved, changes: Changes) -> None:
        """Send the KV of all positions that the other end lacks, as they are computed. Raises LinkError."""
        asked = one.asked
        assert asked is not None
        channel = self._context.channel_to(one.decode, reserved.address, asked)
        async with channel.giving() as peer:
            number = 0
            while True:
                piece = one.transfer.next(one.sequence.present, reserved.cached)
                if piece is not None:
                    await self._send(one, peer, number, piece)
                    number += 1
                elif one.transfer.is_sent and one.sequence.has_sampled:
                    return
                else:
                    await changes.wait()

    async def _send(self, one: OutgoingKv, peer: Peer, number: int, piece: StagedPiece) -> None:
        region, data = piece.region, piece.data
        if not data:
            kv = KvSlice(one.sequence.blocks, region.start, region.stop, region.layers)
            data = await self._worker.runner.export_slices([kv], SPARE_BYTES)
        write_digest(data)
        if piece.told:
            header = memoryview(pack_header(region.start, region.stop, piece.told))
            await peer.send(tag(HEADER, number), Buffer(header), timeout=PIECE_SECONDS)
        self.rate.begin(self._worker.clock.now())
        self._context.kv_first.begin()
        sent = 0
        try:
            await peer.send(tag(DATA, number), Buffer(data), timeout=PIECE_SECONDS)
            sent = data.nbytes - SPARE_BYTES
        finally:
            self.rate.end(self._worker.clock.now(), sent, sent / one.transfer.token_bytes)
            self._context.kv_first.end(sent)
        self._counts.sent.inc(sent)
        one.sent_bytes += sent
        one.transfer.sent(piece)

    async def _offer(self, one: OutgoingKv) -> None:
        """Return once the decode worker has said that the request is its own; it is asked until it answers. Raises
        Refusal."""
        sequence, now, asked = one.sequence, self._worker.clock.now(), one.asked
        assert asked is not None
        assert one.stopped is not None
        request = sequence.as_request()
        command = TakeOver(
            prefill=self._worker.me,
            ticket=asked.ticket,
            request_id=one.request_id,
            generated=request.generated,
            logprobs=request.logprobs,
            prompt_logprobs=sequence.prompt_logprobs,
            waited=self._serving.waited(one.request_id),
            silent=now - one.stopped,
        )
        while True:
            try:
                await self._worker.bus.call(TAKE_OVER, command, timeout=CALL_SECONDS, id=one.decode)
            except Refusal:
                raise
            except BusError as error:
                log.warning("take_over_in_doubt", request=one.request_id, to=one.decode, error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _until_stopped(self, one: OutgoingKv, changes: Changes) -> None:
        while not one.note_stopped(self._worker.clock.now()):
            await changes.wait()

    async def _until_ready(self, one: OutgoingKv, changes: Changes) -> None:
        while not one.sequence.has_sampled:
            await changes.wait()

    def _go_on(self, one: OutgoingKv) -> None:
        if one.moves:
            one.stopped, one.sequence.decodes_meanwhile = None, True
            self._serving.wake()
