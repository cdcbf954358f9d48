"""Requests on a worker: batches go through the engine, and each step's tokens leave in one frame for each gateway."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

import structlog

from livescale.services.worker.engine.contract import RankLost, Runner
from livescale.services.worker.instance.frames import TokenFrames
from livescale.services.worker.instance.metrics import WorkerMetrics
from livescale.services.worker.scheduling.batch import Batch, Chosen, LayerEntry, TokenOutput, Withheld
from livescale.services.worker.scheduling.limits import SchedulerLimits
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.services.worker.scheduling.sequence import Filled, LateKv
from livescale.services.worker.scheduling.sequence import Sequence as RunningSequence
from livescale.shared.bus.contract import Ack, Bus, Context, Refusal
from livescale.shared.messages.membership import EngineLoad
from livescale.shared.messages.requests import Replay, Running, Submit
from livescale.shared.runtime.clock import Clock
from livescale.shared.runtime.waiting import Changes

log = structlog.get_logger()


class ServingLoop:
    """Runs the requests of one model at a time. `on_step` is called after every step, and when a request moves."""

    def __init__(self, worker: str, bus: Bus, clock: Clock, runner: Runner, metrics: WorkerMetrics) -> None:
        self.frames = TokenFrames(worker, bus, clock)
        self._clock = clock
        self._runner = runner
        self._metrics = metrics
        self.scheduler: Scheduler | None = None
        self._work = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        # What other parts of the worker hang in here. The actor: a report of its load is due.
        self.on_step: Callable[[], None] = lambda: None
        # The instance: it tells of its first token.
        self.on_first_token: Callable[[], None] | None = None
        # The deployment: other ranks run the batch that is going to be run here, and none of them may be lost.
        self.on_batch: Callable[[Batch], None] = lambda batch: None
        self.on_rank_lost: Callable[[str], None] = lambda reason: None
        # Disaggregation: a request whose KV is nearly here would miss the next step; KV leaves with a batch.
        self.is_joined_soon: Callable[[], bool] = lambda: False
        self.with_exports: Callable[[Batch], Batch] = lambda batch: batch
        # Vocabulary and adapters: each may have a request that came wait for a grammar's first mask, or its adapter.
        self.holds: list[Callable[[RunningSequence], None]] = []
        self._opened_at = clock.now()
        self.unasked_seconds: float | None = None
        self.runs_steps = True  # else others run the layers of these requests one by one, and may keep their KV
        self.changes = Changes()
        self._running: Batch | None = None
        self.ending: Batch | None = None  # of the step that runs, once its last layer does
        self._log = log.bind()  # once, and not for every step

    def open(self, model: str, version: str, limits: SchedulerLimits, *, whole: bool = True) -> Scheduler:
        """Take requests from now on. No step runs while the model is not `whole`."""
        scheduler = self.scheduler = Scheduler(limits)
        self.frames.version = version
        self._opened_at, self.unasked_seconds = self._clock.now(), None
        self.runs_steps = whole
        if whole:
            scheduler.keep_prefixes()
        self._metrics.serve(model, self.load)
        return scheduler

    def begin_steps(self) -> None:
        """Run steps from now on: the model has become whole."""
        self.runs_steps = True
        if self.scheduler is not None:
            self.scheduler.keep_prefixes()
        self.wake()

    def close(self) -> None:
        """Take no more requests. Those that are left are dropped without a message: this worker no longer has them."""
        self.scheduler = None
        self.frames.send_waiting()
        self.frames.history.drop_running()
        self.idle.set()
        self.changes.tell()

    def lose(self, reason: str) -> None:
        """Tell gateways that this worker does not go on with any of its requests, and why."""
        self.disown(self.running(), reason)

    def disown(self, requests: Sequence[Running | Submit], reason: str) -> None:
        """Tell gateways that these requests do not go on here; they may submit them again."""
        self.frames.tell_lost(requests, reason)
        for one in requests:
            self._metrics.lost(one.request_id, self._clock.now(), reason)

    def wake(self) -> None:
        """Have the loop look for work, because there may be some now."""
        self._work.set()
        self.changes.tell()

    def near_end(self) -> None:
        """Note that the last layer of a step begins."""
        self.ending = self._running
        self.changes.tell()

    def load(self) -> EngineLoad | None:
        """What there is to do and what there is room for; None when nothing is served."""
        if self.scheduler is None:
            return None
        return self._runner.rates.told(self.scheduler.load(), self.scheduler.limits)

    def running(self) -> list[Running]:
        """Every request that is here, waiting or running."""
        return [] if self.scheduler is None else self.scheduler.running()

    def admit(self, request: Submit) -> None:
        """Take a request. Raises Refusal where it can never run here.

        A request that is here already is accepted again: a router that got no answer, or has restarted, may repeat it.
        """
        if self.scheduler is None:
            raise Refusal(409, "this worker serves no model")
        if request.version not in (None, self.frames.version):
            raise Refusal(409, f"this worker serves version {self.frames.version}, not {request.version}")
        if request.request_id in self.scheduler:
            return
        self.scheduler.add(request)
        self._hold(self.scheduler, request)
        self._asked()
        self._metrics.admitted(request, self._clock.now())
        self.idle.clear()
        self.wake()
        self.on_step()

    def _asked(self) -> None:
        """Note how long this worker took requests before the first one came."""
        if self.unasked_seconds is None:
            self.unasked_seconds = self._clock.now() - self._opened_at

    def adopt(
        self, scheduler: Scheduler, request: Submit, entry: LayerEntry | None, filled: Filled | None, waited: float
    ) -> LateKv | None:
        """Take over a request that waited `waited` seconds at another worker; see `Scheduler.adopt`.

        Its gateway learns which worker has it now.
        """
        late = scheduler.adopt(request, entry, filled)
        self._hold(scheduler, request)
        self._metrics.admitted(request, self._clock.now(), waited)
        self._came(request)
        return late

    def take_over(self, request: Submit, waited: float, silent: float) -> None:
        """Go on with a request that the scheduler has taken over. Its last token came `silent` seconds ago."""
        self._metrics.taken_over(request, self._clock.now(), waited, silent)
        if self.scheduler is not None:
            self._hold(self.scheduler, request)
        self._came(request)

    def _hold(self, scheduler: Scheduler, request: Submit) -> None:
        if (sequence := scheduler.get(request.request_id)) is not None:
            for hold in self.holds:
                hold(sequence)

    def _came(self, request: Submit) -> None:
        self._asked()
        self.idle.clear()
        self.frames.tell_here(request)
        self.wake()
        self.on_step()

    def give_up(self, sequence: RunningSequence, reason: str, code: int) -> None:
        """End a request, if it is still here: it gets the reason as its answer. The others go on."""
        if self.scheduler is not None:
            self._stepped(self.scheduler, self.scheduler.give_up(sequence, Withheld(reason, code)))
            self.wake()

    def release(self, request_id: str, taker: str, layers: int) -> None:
        """Drop a request that another worker goes on with, `taker`, and tell routers; so many `layers` of it were run
        here."""
        if self.scheduler is not None and request_id in self.scheduler:
            self.scheduler.release(request_id)
            self.frames.history.forget(request_id)
            self._runner.forget_masks(request_id)
            self._metrics.moved(request_id, self._clock.now(), taker, layers)
            self.wake()
            self.on_step()
        self.frames.tell_moved(request_id, taker, layers)

    def waited(self, request_id: str) -> float:
        """Seconds since a request was admitted, here or at the worker that it came from."""
        return self._metrics.waited(request_id, self._clock.now())

    def went_live(self, request_ids: Iterable[str]) -> None:
        """Note that the first layer of these requests begins, before the model is whole."""
        now = self._clock.now()
        for request_id in request_ids:
            self._metrics.went_live(request_id, now)

    def cancel(self, request_id: str) -> None:
        """End a request and free its KV blocks at once. Unknown ids are ignored."""
        output = None if self.scheduler is None else self.scheduler.cancel(request_id)
        if output is not None:
            self.publish([output])
            self.wake()

    async def replay(self, command: Replay, context: Context) -> Ack:
        """Answer REPLAY: send a request's tokens again, if there are any. Raises Refusal 404 for an unknown request."""
        is_here = self.scheduler is not None and command.request_id in self.scheduler
        if not self.frames.send_again(command) and not is_here:
            raise Refusal(404, f"request {command.request_id} has no token {command.index} here")
        return Ack()

    async def run(self) -> None:
        """Run one step after the other, while there is work.

        The work between steps does not run beside them, as an engine needs the interpreter every 50 to 150 us and would
        wait for it. With a core for each, a step of a model of 30M parameters took 3 % longer, one of 120M as long.
        """
        while True:
            while self.is_joined_soon():
                await self.changes.wait()
            scheduler = self.scheduler
            if scheduler is None or scheduler.is_empty:
                self.idle.set()  # whether or not contexts are computed
            batch = self._next_batch(scheduler) if scheduler is not None and self.runs_steps else None
            if scheduler is not None and batch is not None:
                await self._step(scheduler, batch)
            else:
                await self._wait_for_work(scheduler)

    def _next_batch(self, scheduler: Scheduler) -> Batch | None:
        rates = self._runner.rates
        scheduler.weigh_fetches(rates.fetch_tokens_per_second, rates.prefill_tokens_per_second)
        batch = scheduler.next_batch(pace=rates.pace)
        return None if batch is None else self.with_exports(batch)

    async def _wait_for_work(self, scheduler: Scheduler | None) -> None:
        """Wait for work, or for the first deadline: a request that waits for KV from elsewhere waits no longer than
        that."""
        self._work.clear()
        deadline = None if scheduler is None else scheduler.next_deadline()
        try:
            async with asyncio.timeout(None if deadline is None else max(0.0, deadline - self._clock.wall())):
                await self._work.wait()
        except TimeoutError:
            if scheduler is not None and scheduler is self.scheduler and deadline is not None:
                # A timer may be due by a rounding earlier than the wall clock shows: under virtual time, for ever.
                self.publish(scheduler.expire(max(deadline, self._clock.wall())))
                self.changes.tell()

    async def _step(self, scheduler: Scheduler, batch: Batch) -> None:
        begun = self._clock.now()
        if batch.preempted:
            log.info("requests_preempted", step=batch.step, requests=batch.preempted)
        self.on_batch(batch)
        self._running = batch
        try:
            chosen = await self._runner.step(batch)
        except RankLost as error:
            return self.on_rank_lost(str(error)) if self.scheduler is scheduler else None
        except (RuntimeError, MemoryError) as error:  # torch's own, out of memory included
            log.error("step_failed", step=batch.step, rows=batch.prefill_rows + batch.decode_rows, error=str(error))
            return self._stepped(scheduler, scheduler.fail(f"the engine failed: {error}"))
        finally:
            self._running = self.ending = None
        return self.stepped(scheduler, batch, chosen, begun)

    def stepped(self, scheduler: Scheduler, batch: Batch, chosen: Chosen, begun: float) -> None:
        """Take what was chosen in a step that began at the time `begun`."""
        if self._log.is_enabled_for(logging.DEBUG):  # it takes a sum over all rows
            seconds, rows = self._clock.now() - begun, batch.prefill_rows + batch.decode_rows
            self._log.debug("step_ran", step=batch.step, rows=rows, layers_before=batch.layers_before, seconds=seconds)
        outputs = scheduler.complete(batch, chosen, self._clock.wall())
        self._metrics.stepped(batch, begun)
        self._stepped(scheduler, outputs)

    def _stepped(self, scheduler: Scheduler, outputs: list[TokenOutput]) -> None:
        if self.scheduler is scheduler:
            self.publish(outputs)
        self.on_step()
        self.changes.tell()

    def publish(self, outputs: Sequence[TokenOutput]) -> None:
        """Send tokens to gateways, and say which requests have ended."""
        if not outputs:
            return  # the step ended no prompt, and had no decodes
        sent = self.frames.send_all(outputs)
        self._metrics.emitted(sent, self._clock.now())
        if self.on_first_token is not None and any(row.token_ids for row in sent):
            self.on_first_token()
            self.on_first_token = None
        ended = [row for row in sent if row.finish_reason is not None]
        for row in ended:
            self._runner.forget_masks(row.request_id)
        if ended:
            tokens = [row.index + len(row.token_ids) for row in ended]
            self.frames.tell_ended([row.request_id for row in ended], tokens)
