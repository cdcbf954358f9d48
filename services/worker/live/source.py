"""A worker that serves and helps others that load: whenever it has nothing to prefill it pulls from them.

It asks as the last layer of its last prompt begins. What comes is here when the step ends, so that no time is lost.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

import structlog

from livescale.services.worker.instance.context import HandOffTickets
from livescale.services.worker.live.context import LiveContext
from livescale.services.worker.live.handoff_receive import HandOffBatch, IncomingHandOff
from livescale.services.worker.live.policy import (
    AskTarget,
    BatchBudget,
    SourceEffect,
    SourcePolicy,
    StopAsking,
    batch_budget,
)
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.bus.contract import Ack, BusError, Context, Refusal
from livescale.shared.messages.live import Help, Pull, Pulled, Took, Withdraw
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.transfers import Node
from livescale.shared.subjects import PULL, TOOK, WITHDRAW

PULL_SECONDS = 2.0  # the target holds a pull for less
TOOK_SECONDS = 2.0
SILENT_SECONDS = 10.0  # and a target is left: longer than the bus is away, or a lease lasts
FAILED_HAND_OFFS = 3  # of one target in a row, and it is left
RETRY_SECONDS = 0.25

log = structlog.get_logger()


@dataclass(frozen=True)
class Helped:
    """A target that this worker helps, as the HELP for it said."""

    node: Node
    plan_id: str
    manifest: Manifest


class LiveSource:
    """The targets that this worker helps, and the requests on their way here."""

    def __init__(self, context: LiveContext) -> None:
        self._live = context
        self._context = context.worker
        self._instance = context.instance
        self._serving = context.serving
        self._group = context.group
        self._policy = SourcePolicy()
        self._helped: dict[str, Helped] = {}
        self._wanted: set[str] = set()  # targets that are asked, until one of them gives something
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._receiving: dict[asyncio.Task[None], IncomingHandOff] = {}
        self._coming = 0  # requests that are not here yet, and not the target's for long
        self._began = asyncio.Event()  # to help a target
        self._failed: Counter[str] = Counter()  # hand-offs in a row, by target
        self._tickets = HandOffTickets()

    @property
    def helping(self) -> list[str]:
        """The ids of the targets that this worker helps, sorted."""
        return sorted(self._helped)

    async def help(self, command: Help, context: Context) -> Ack:
        """Answer HELP: pull from targets that load what this worker serves. Raises Refusal 409 where it does not."""
        loading = self._instance.serves(command.version)
        self.begin(command.plan_id, command.targets, loading.manifest)
        self._instance.changed()
        return Ack()

    def begin(self, plan_id: str, targets: Sequence[Node], manifest: Manifest) -> None:
        """Pull from these targets of a plan, and no longer from others of it."""
        named = {node.id for node in targets}
        for id, helped in list(self._helped.items()):
            if helped.plan_id == plan_id and id not in named:
                self._leave(id)
        for node in targets:
            self._helped[node.id] = Helped(node, plan_id, manifest)
            self._perform(self._policy.help(node.id))
        self._context.runner.on_last_layer = self._serving.near_end
        self._began.set()
        self._look()

    def leave(self, target: str) -> None:
        """Help this target no longer: it needs no help any more, or is gone."""
        self._leave(target)
        self._look()

    def lost(self, target: str) -> None:
        """The target is dead, and nothing more comes of what is on its way here."""
        self.leave(target)
        for hand_off in self._receiving.values():
            if hand_off.needs(target):
                hand_off.abandon()

    def _leave(self, target: str) -> None:
        if self._helped.pop(target, None) is not None:
            del self._failed[target]
            self._policy.leave(target)
            self._stop_asking(target)
            self._serving.changes.tell()
        if not self._policy.helps:
            self._context.runner.on_last_layer = None

    async def run(self) -> None:
        """Ask whenever there is nothing to prefill, and have no rank keep KV of requests that have ended."""
        while True:
            self._look()
            self._forget()
            if self._policy.helps or self._receiving or self._group.leader.taken:
                await self._serving.changes.wait()
            else:  # every step is a change, and this task would hold up the next one
                self._began.clear()
                await self._began.wait()

    def _forget(self) -> None:
        scheduler, leader = self._serving.scheduler, self._group.leader
        if leader.taken and scheduler is not None:
            leader.keep({one.request_id for one in scheduler.in_order if one.late is not None})

    async def stop(self) -> None:
        """Ask no target any more, and return once what is on its way has arrived."""
        self._perform(self._policy.busy())
        for target in self.helping:
            self._leave(target)
        while self._asking or self._receiving:
            await asyncio.wait((*self._asking.values(), *self._receiving))

    async def give_up(self) -> None:
        """Drop what is on its way, as nothing here is this worker's own any more."""
        for task in (*self._asking.values(), *self._receiving):
            task.cancel()
        await self.stop()
        self._coming = 0

    def _look(self) -> None:
        if not self._policy.helps:
            return
        scheduler = self._serving.scheduler
        is_free = scheduler is not None and scheduler.wants_more(self._serving.ending)
        self._perform(self._policy.idle(self._coming) if is_free else self._policy.busy())

    def _perform(self, effects: Iterable[SourceEffect]) -> None:
        for effect in effects:
            match effect:
                case AskTarget(target=target):
                    self._wanted.add(target)
                    self._begin_asking(target)
                case StopAsking(target=target):
                    self._stop_asking(target)
                case other:
                    assert_never(other)

    def _begin_asking(self, target: str) -> None:
        """Pull from this target, unless the last pull is still under way and will be repeated."""
        if target in self._asking or target not in self._wanted:
            return
        asking = self._context.start(self._ask(self._helped[target]), f"pull from {target}")
        if asking is not None:
            self._asking[target] = asking
            asking.add_done_callback(lambda _: self._asked(target))

    def _asked(self, target: str) -> None:
        del self._asking[target]
        self._begin_asking(target)  # where it is wanted again meanwhile

    def _stop_asking(self, target: str) -> None:
        if target in self._wanted:
            self._wanted.discard(target)
            self._context.bus.publish(WITHDRAW, Withdraw(worker=self._context.me), id=target)

    async def _ask(self, helped: Helped) -> None:
        """Pull until this target gives something, or others did."""
        target, clock = helped.node.id, self._context.clock
        heard_at = clock.now()
        while target in self._wanted and (scheduler := self._serving.scheduler) is not None:
            pull = self._new_pull(helped, scheduler)
            try:
                pulled = await self._context.bus.call(PULL, pull, timeout=PULL_SECONDS, id=target)
            except BusError as error:
                log.warning("pull_failed", target=target, error=str(error))
                self._perform(self._policy.nothing(target))
                if isinstance(error, Refusal) or clock.now() - heard_at >= SILENT_SECONDS:
                    self.leave(target)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                heard_at = clock.now()
                self._pulled(helped, scheduler, pull, pulled)

    def _new_pull(self, helped: Helped, scheduler: Scheduler) -> Pull:
        budget = self._budget(scheduler)
        return Pull(
            worker=self._context.me,
            address=self._context.link.address,
            version=helped.manifest.version,
            ticket=self._tickets.take(budget.tasks),
            block_tokens=scheduler.limits.kv_block_tokens,
            secret=self._context.world.ids.secret(),
            requests=budget.tasks,
            rows=budget.rows,
            waits=self._wanted == self._helped.keys(),
            ranks=self._group.leader.others,
        )

    def _budget(self, scheduler: Scheduler) -> BatchBudget:
        """How much may come from one of the targets that are asked."""
        budget, running = batch_budget(scheduler.limits, self._context.runner.joined_rows), len(scheduler.running())
        return BatchBudget(max(1, budget.tasks - running), budget.rows // max(1, len(self._wanted)))

    def _pulled(self, helped: Helped, scheduler: Scheduler, pull: Pull, pulled: Pulled) -> None:
        target = helped.node.id
        if pulled.over:
            log.info("help_over", target=target)
            self.leave(target)
        if not pulled.tasks:
            self._perform(self._policy.nothing(target))
            return
        self._wanted.discard(target)
        self._perform(self._policy.busy(target, more=pulled.more))
        hand_offs = [
            IncomingHandOff(
                helped.manifest,
                scheduler,
                self._context.channel(helped.node, ticket, pull.secret),
                task,
                pulled,
                self._live,
                self._tell_took,
            )
            for ticket, task in enumerate(pulled.tasks[: pull.requests], pull.ticket)  # beyond, tickets are others'
        ]
        batch = HandOffBatch(hand_offs)
        for hand_off in hand_offs:
            receiving = self._context.start(self._receive(target, hand_off, batch), f"take {hand_off.request_id}")
            if receiving is not None:
                self._coming += 1
                self._receiving[receiving] = hand_off
                receiving.add_done_callback(self._receiving.pop)

    async def _tell_took(self, target: str, took: Took) -> bool:
        """Tell a target whether a request was taken. Returns whether the request is no longer the target's.

        A target that does not answer may have heard, and then no other worker has the request. If it has not
        heard, both workers make the same tokens.
        """
        try:
            await self._context.bus.call(TOOK, took, timeout=TOOK_SECONDS, id=target)
        except BusError as error:
            log.warning("hand_off_in_doubt", request=took.request_id, of=target, error=str(error))
            return not (isinstance(error, Refusal) and error.code == 409)
        return True

    async def _receive(self, target: str, hand_off: IncomingHandOff, batch: HandOffBatch) -> None:
        try:
            try:
                owned = await hand_off.own()
                batch.settled()
                if owned:
                    self._failed[target] = 0
                else:
                    await self._hand_off_failed(target)
            finally:
                self._coming -= 1
            self._look()
            await hand_off.finish()
        finally:
            await hand_off.close()

    async def _hand_off_failed(self, target: str) -> None:
        """Wait, or leave the target: what a source gives back it would be given again at once, and for ever."""
        self._failed[target] += 1
        if self._failed[target] == FAILED_HAND_OFFS:
            log.warning("target_left", target=target, hand_offs_failed=FAILED_HAND_OFFS)
            self.leave(target)
        await asyncio.sleep(RETRY_SECONDS)
