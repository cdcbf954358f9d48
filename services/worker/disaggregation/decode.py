"""The worker that decodes: it keeps KV blocks for requests that others prefill, and goes on with them.

KV is laid down between two steps, for a bounded time. Nothing is decoded before all of it is here.
"""

import asyncio
from collections import OrderedDict
from contextlib import suppress
from functools import partial
from typing import cast

import structlog

from livescale.services.worker.disaggregation.context import KvContext
from livescale.services.worker.disaggregation.incoming import IncomingKv, reservation_name
from livescale.services.worker.disaggregation.laying import (
    MOST_STAGED_BYTES,
    most_laid,
    staged_bytes,
    take_round,
)
from livescale.services.worker.disaggregation.wire import receive_header, receive_piece
from livescale.services.worker.scheduling.batch import SPARE_BYTES, slice_bytes
from livescale.services.worker.scheduling.reservations import Reservation
from livescale.shared.bus.contract import Ack, Context, Refusal
from livescale.shared.links.contract import LinkError, Peer
from livescale.shared.messages.disaggregation import ReleaseKv, Reserve, Reserved, TakeOver
from livescale.shared.messages.parameters import Manifest

OFFER_SECONDS = 0.003  # from the last piece of a prompt until its first token is chosen and the request is offered
MOST_REMEMBERED = 1024  # transfers that are over, for those who ask again or late

log = structlog.get_logger()


class DecodeSide:
    """All requests that this worker is to decode and others prefill."""

    def __init__(self, context: KvContext) -> None:
        self._context = context
        self._worker = context.worker
        self._serving = context.serving
        self._incoming: dict[str, IncomingKv] = {}
        self._receiving: dict[str, asyncio.Task[None]] = {}
        self._taken: OrderedDict[str, None] = OrderedDict()
        self._released: OrderedDict[str, None] = OrderedDict()  # what was given up, perhaps before it was asked for
        self._laying: asyncio.Task[None] | None = None
        self._laying_bytes = 0  # of the copy that the engine was asked for
        context.serving.is_joined_soon = self._is_joined_soon
        context.counts.reserved.set_function(self._reserved_blocks)

    def __len__(self) -> int:
        return len(self._incoming)

    async def reserve(self, command: Reserve, context: Context) -> Reserved:
        """Answer RESERVE: keep KV blocks for a request. Raises Refusal 409 or 429 where this worker does not."""
        name = reservation_name(command.prefill.id, command.ticket, command.request.request_id)
        if name in self._released or name in self._taken:
            raise Refusal(409, f"the transfer of {command.request.request_id} is over: this comes late, or again")
        one = self._incoming.get(name)
        if one is not None and one.asked.secret != command.secret:
            self._drop(one, f"{command.prefill.id} was started again")
            raise Refusal(429, "KV blocks are still kept for an earlier transfer of this name")
        if one is None:
            one = self._reserve(name, command)
        return Reserved(address=self._worker.link.address, cached=one.reservation.cached)

    def _reserve(self, name: str, command: Reserve) -> IncomingKv:
        served, scheduler = self._context.served, self._serving.scheduler
        if served is None or scheduler is None:
            raise Refusal(409, "this worker serves no model whole and alone")
        self._context.instance.serves(command.version)
        request = self._worker.arrived(command.request)
        scheduler.check(request)
        reservation = scheduler.reserve(name, request)
        if reservation is None:
            raise Refusal(429, "requests wait here, or there are no KV blocks for one more")
        scheduler.reservations.on_drop = self._dropped
        layers, began = served.manifest.config.num_hidden_layers, self._worker.clock.now()
        one = self._incoming[name] = IncomingKv(command, scheduler, reservation, layers, began)
        self._serving.idle.clear()
        receiving = self._worker.start(self._receive(one, served.manifest), f"KV from {name}")
        if receiving is None:
            scheduler.reservations.writer_ended(reservation)
            self._drop(one, "this worker is ending")
            raise Refusal(409, "this worker is ending")
        self._receiving[name] = receiving
        receiving.add_done_callback(partial(self._received, name, one))
        self._serving.on_step()
        return one

    async def take_over(self, command: TakeOver, context: Context) -> Ack:
        """Answer TAKE_OVER: the request is this worker's from now on. Raises Refusal 409 where it stays where it is."""
        name = reservation_name(command.prefill, command.ticket, command.request_id)
        one = self._incoming.get(name)
        if one is not None:
            request = one.asked.request
            before, after = len(request.generated), len(command.generated)
            if command.request_id != request.request_id or after <= before:
                raise Refusal(400, f"generated: {after} tokens, more than the {before} before are expected")
            await self._whole(one)
        if name in self._taken:
            return Ack()
        scheduler = self._serving.scheduler
        if one is None or not one.is_whole or one.scheduler is not scheduler:
            raise Refusal(409, f"no KV blocks are kept for {command.request_id}")
        if command.request_id in one.scheduler:
            self._drop(one, "the request is here already")
            raise Refusal(409, f"request {command.request_id} is here already")
        self._go_on(name, one, command)
        return Ack()

    async def _whole(self, one: IncomingKv) -> None:
        """Return once the request can go on here, or will not."""
        one.is_offered = True
        try:
            while not (one.is_whole or one.is_over):
                await self._serving.changes.wait()
        finally:
            one.is_offered = False
            self._serving.changes.tell()

    def _go_on(self, name: str, one: IncomingKv, command: TakeOver) -> None:
        sequence = one.scheduler.take_over(name, command)
        del self._incoming[name]
        _remember(name, self._taken)
        log.info("request_taken_over", request=command.request_id, of=command.prefill, tokens=len(sequence.tokens))
        request = sequence.as_request()
        now, layers = self._worker.clock.now(), one.layers
        self._worker.spans.taken(request, command.prefill, one.began, now, layers=layers, size_bytes=one.received_bytes)
        self._serving.take_over(request, command.waited, command.silent)

    async def release(self, command: ReleaseKv, context: Context) -> Ack:
        """Answer RELEASE_KV: keep no blocks for the request. Raises Refusal 409 where it was taken over before."""
        name = reservation_name(command.prefill, command.ticket, command.request_id)
        if name in self._taken and not command.ended:
            raise Refusal(409, f"request {command.request_id} was taken over")
        if name in self._taken:
            self._serving.cancel(command.request_id)
        _remember(name, self._released)
        one = self._incoming.get(name)
        if one is not None:
            self._drop(one, command.reason)
        return Ack()

    def lost(self, worker: str) -> None:
        """This worker is dead: what it has not handed over goes on elsewhere."""
        for one in list(self._incoming.values()):
            if one.asked.prefill.id == worker:
                self._drop(one, f"{worker} is dead")
        for over in (self._taken, self._released):
            for name in [name for name in over if name.startswith(f"{worker}/")]:
                del over[name]

    async def end(self, reason: str) -> None:
        """Keep nothing any more. Once this returns, nothing writes into the KV cache."""
        for one in list(self._incoming.values()):
            self._drop(one, reason)
        if self._receiving:
            await asyncio.wait(self._receiving.values())

    def _drop(self, one: IncomingKv, reason: str) -> None:
        one.scheduler.reservations.drop(one.reservation.name, reason)

    def _dropped(self, reservation: Reservation, reason: str) -> None:
        """Blocks are given up: nothing more is written into them, and they are free once nothing is."""
        log.info(
            "kv_reservation_dropped", request=reservation.sequence.request_id, name=reservation.name, reason=reason
        )
        self._incoming.pop(reservation.name, None)
        receiving = self._receiving.get(reservation.name)
        if receiving is not None and receiving is not asyncio.current_task():
            receiving.cancel()
        self._serving.wake()

    async def _receive(self, one: IncomingKv, manifest: Manifest) -> None:
        """Lay down all KV of a request, and close the channel. Where it does not come, nothing is kept for it."""
        asked, peer = one.asked, None
        channel = self._context.channel_from(asked)
        try:
            peer = await channel.connect()
            await self._take_pieces(one, peer, manifest)
            while not one.laid.is_full:
                await self._serving.changes.wait()
        except (LinkError, RuntimeError, ValueError) as error:
            self._drop(one, str(error))
        finally:
            if not one.laid.is_full:
                await self._barrier()
            self._writer_ended(one)
            if peer is not None:
                await peer.close()

    def _received(self, name: str, one: IncomingKv, receiving: asyncio.Task[None]) -> None:
        """Note that a transfer is over, also one that was dropped before it began."""
        self._receiving.pop(name, None)
        self._writer_ended(one)

    def _writer_ended(self, one: IncomingKv) -> None:
        if one.reservation.written:
            one.scheduler.reservations.writer_ended(one.reservation)
            self._serving.wake()

    async def _take_pieces(self, one: IncomingKv, peer: Peer, manifest: Manifest) -> None:
        """Receive pieces until every position has come in every layer. Raises LinkError, also where one is damaged."""
        number, layers = 0, manifest.config.num_hidden_layers
        while not one.came.is_full:
            for region in await receive_header(peer, number, one.positions, layers):
                while staged_bytes(self._incoming.values()) >= MOST_STAGED_BYTES:
                    await self._serving.changes.wait()
                memory = self._worker.runner.new_memory(slice_bytes(manifest, one.slice(region)) + SPARE_BYTES)
                # Only a modelled engine has other memory than the host's, and knows it.
                one.stage(region, await receive_piece(peer, number, cast("memoryview", memory)))
                number += 1
                self._begin_laying()
        if number:
            self._expect_offer(one)

    def _expect_offer(self, one: IncomingKv) -> None:
        """Have the next step wait a moment for a request that is offered right now, or it would miss a whole step.

        One that has tokens may have to finish a step first. Steps wait for one request at a time.
        """
        if not (one.asked.request.generated or any(other.is_expected for other in self._incoming.values())):
            one.is_expected = True
            asyncio.get_running_loop().call_later(OFFER_SECONDS, self._expect_no_more, one)

    def _expect_no_more(self, one: IncomingKv) -> None:
        one.is_expected = False
        self._serving.changes.tell()

    @property
    def _most_laid(self) -> int:
        rates = self._worker.runner.rates
        return most_laid(rates.copied_bytes_per_second, rates.pace.seconds_alone)

    def _is_joined_soon(self) -> bool:
        left = self._most_laid - self._laying_bytes
        return any(one.joins_soon(left) for one in self._incoming.values())

    def _begin_laying(self) -> None:
        if self._laying is None or self._laying.done():
            self._laying = self._worker.start(self._lay_down(), "KV that came")

    async def _lay_down(self) -> None:
        """Lay down all that came, for all requests together, a part between any two steps."""
        while taken := take_round(self._incoming.values(), self._most_laid):
            pieces = [(one.slice(region), data) for one, region, data in taken]
            self._laying_bytes = sum(data.nbytes for _, data in pieces)
            try:
                # Of the engine's jobs, copies that are due are first, and what is in these blocks by then is theirs.
                await self._worker.runner.lay_down(taken[0][0].scheduler.due_copies(), pieces)
            except (RuntimeError, ValueError) as error:
                for one, _, _ in taken:
                    self._drop(one, str(error))
                continue
            finally:
                self._laying_bytes = 0
            for one, region, _ in taken:
                one.laid.add(region)
            self._serving.changes.tell()

    async def _barrier(self) -> None:
        """Return once the engine has done what it was asked before: a write may be among it."""
        with suppress(RuntimeError):  # no model is loaded any more
            await self._worker.runner.lay_down((), ())

    def _reserved_blocks(self) -> float:
        scheduler = self._serving.scheduler
        return 0.0 if scheduler is None else scheduler.reservations.blocks


def _remember(name: str, over: OrderedDict[str, None]) -> None:
    """Note that a transfer is over, and forget the oldest where these are too many."""
    over[name] = None
    if len(over) > MOST_REMEMBERED:
        over.popitem(last=False)
