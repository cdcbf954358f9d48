"""The monitor: it hears load, lets the policy decide, and asks the planner to scale."""

import asyncio
from collections.abc import Sequence

import structlog

from livescale.services.monitor.policy import RetryTimes, ScalingPolicy
from livescale.services.monitor.settings import MonitorSettings
from livescale.services.monitor.signals import Signals
from livescale.services.monitor.verdict import Journal, ScalingVerdict, as_advice
from livescale.shared.bus.contract import BusError, Context, Endpoint, Received, Refusal, Subscription
from livescale.shared.messages.membership import Beat, HostReport, LeaseChanged, Report, RouterReport, WorkerReport
from livescale.shared.messages.registry import AskModels, AskSnapshot
from livescale.shared.messages.scaling import AskDecisions, AskScales, Decision, Decisions, Scale, ScaleRecord
from livescale.shared.process.run import World
from livescale.shared.subjects import DECISION, DECISIONS, HEARTBEAT, LEASE, MODELS, PLAN, SCALE, SCALES, SNAPSHOT

EVALUATE_SECONDS = 0.05
SPACING_SECONDS = 0.005  # a flood of reports is answered by one evaluation
MODELS_SECONDS = 0.5
SCALES_SECONDS = 1.0
SCALES_ASKED = 50
CALL_SECONDS = 5.0

log = structlog.get_logger()


class Monitor:
    """Evaluates one policy for all models, whenever something is reported and at least twenty times a second."""

    def __init__(self, world: World, settings: MonitorSettings) -> None:
        self._bus, self._clock, self._ids, self._info = world.bus, world.clock, world.ids, world.info
        self._signals = Signals(settings.stale_seconds)
        times = RetryTimes(CALL_SECONDS, settings.retry_seconds)
        self._policy = ScalingPolicy(self._signals, times, settings.role_rule())
        self._is_advisory = settings.scaling == "advisory"
        self._journal = Journal()
        self._membership = world.membership("monitor")
        self._calls = asyncio.TaskGroup()
        self._news = asyncio.Event()
        self._evaluates = False
        self._splits: dict[str, str] = {}  # by model: why the router chose who prefills
        self._decisions = world.telemetry.counter(
            "livescale_monitor_decisions_total", "Decisions by model, action and rule", ["model_name", "action", "rule"]
        )
        self._target = world.telemetry.gauge(
            "livescale_monitor_target_instances", "Instances last decided on, or advised", ["model_name"]
        )
        world.telemetry.watch_gauge(
            "livescale_monitor_wanted_spares",
            "Workers that a model lacks and that no spare worker can be; add this many to the pool",
            ["model_name"],
            lambda: {(model,): float(lacks) for model, lacks in self._policy.wanted_spares.items()},
        )

    async def run(self) -> None:
        heartbeats = await self._bus.subscribe(HEARTBEAT)
        leases = await self._bus.subscribe(LEASE)
        plans = await self._bus.subscribe(PLAN)
        await self._bus.serve(self._info, [Endpoint(DECISIONS, self._last_decisions)])
        async with self._calls as group:
            group.create_task(heartbeats.each(self._hear), name="heartbeats")
            group.create_task(self._follow_leases(leases), name="leases")
            group.create_task(self._follow_plans(plans), name="plans")
            group.create_task(self._keep_models(), name="models")
            group.create_task(self._confirm_scales(), name="scales")
            group.create_task(self._evaluate_for_ever(), name="evaluation")
            group.create_task(self._membership.run(), name="membership")

    async def why_not_ready(self) -> str | None:
        """Why it does not serve its role just now; None where it does."""
        if not self._evaluates:
            return "the registry has not said yet what serves"
        return await self._membership.why_not_ready()

    async def _last_decisions(self, ask: AskDecisions, context: Context) -> Decisions:
        return Decisions(decisions=self._journal.last(ask.model, ask.limit))

    def _hear(self, received: Received[Report]) -> None:
        match received.message:
            case WorkerReport() as report:
                self._signals.on_worker(report, self._clock.now())
                self._news.set()
            case RouterReport() as report:
                self._signals.on_router(report, self._clock.now())
                self._tell_splits(report)
                self._news.set()
            case Beat() | HostReport():
                pass

    async def _follow_leases(self, leases: Subscription[LeaseChanged]) -> None:
        async for received in leases:
            self._signals.on_lease(received.message)
            self._news.set()

    async def _follow_plans(self, plans: Subscription[ScaleRecord]) -> None:
        async for received in plans:
            record = received.message
            self._signals.on_scale(record)
            self._policy.planned(record.decision)
            if record.state == "failed":
                self._policy.failed(record.decision.model, self._clock.now())
            elif record.state == "done":
                self._policy.succeeded(record.decision.model)
            self._news.set()

    async def _keep_models(self) -> None:
        while True:
            try:
                answer = await self._bus.call(MODELS, AskModels(), timeout=CALL_SECONDS)
            except BusError as error:
                log.debug("models_unknown", error=str(error))
            else:
                self._signals.on_models(answer.models)
            await asyncio.sleep(MODELS_SECONDS)

    async def _confirm_scales(self) -> None:
        """Ask the planner for its scales: the end of one can get lost with its message, or with a planner that died."""
        while True:
            await asyncio.sleep(SCALES_SECONDS)
            if not self._signals.sees_scales:
                continue
            try:
                answer = await self._bus.call(SCALES, AskScales(limit=SCALES_ASKED), timeout=CALL_SECONDS)
            except BusError as error:
                log.debug("scales_unknown", error=str(error))
            else:
                self._signals.on_scales(answer.records)
                for record in answer.records:
                    self._policy.planned(record.decision)
                self._news.set()

    async def _learn_workers(self) -> None:
        """Learn what serves already, before the first evaluation: a worker not heard yet may well be there."""
        while True:
            try:
                snapshot = await self._bus.call(SNAPSHOT, AskSnapshot(), timeout=CALL_SECONDS)
            except BusError as error:
                log.debug("registry_unknown", error=str(error))
                await asyncio.sleep(EVALUATE_SECONDS)
            else:
                for report in snapshot.workers:
                    self._signals.on_worker(report, self._clock.now())
                return

    async def _evaluate_for_ever(self) -> None:
        await self._learn_workers()
        self._evaluates = True
        while True:
            for verdict in self._verdicts():
                if self._journal.is_news(verdict):
                    self._decide(verdict)
            await asyncio.sleep(SPACING_SECONDS)
            if not self._news.is_set():  # as it is where there are thousands of workers
                # A timeout would do the same, at several times the cost: it cancels the task.
                due = asyncio.get_running_loop().call_later(EVALUATE_SECONDS, self._news.set)
                try:
                    await self._news.wait()
                finally:
                    due.cancel()
            self._news.clear()

    def _verdicts(self) -> Sequence[ScalingVerdict]:
        verdicts = self._policy.decide(self._clock.now())
        if not self._is_advisory:
            return verdicts
        specs = {entry.spec.name: entry.spec for entry in self._signals.models()}
        return [as_advice(verdict, specs[verdict.model]) for verdict in verdicts]

    def _tell_splits(self, report: RouterReport) -> None:
        """Tell what the router chose of prefill and decode, where it chooses: `livescale why` shows it."""
        for queue in report.queues:
            why = queue.why_prefilling
            if why and self._splits.get(queue.model) != why:
                self._splits[queue.model], count = why, self._signals.loaded(queue.model)
                inputs: dict[str, float | None] = {"instances": count, "prefilling": queue.prefilling}
                self._decide(ScalingVerdict(queue.model, "hold", count, count, "roles", why, inputs))

    def _decide(self, verdict: ScalingVerdict) -> None:
        decision = Decision(
            id=self._ids.new("decision"),
            model=verdict.model,
            at=self._clock.wall(),
            action=verdict.action,
            current=verdict.current,
            target=verdict.target,
            rule=verdict.rule,
            reason=verdict.reason,
            by="monitor",
            inputs=verdict.inputs,
            roles=dict(verdict.roles),
            advice=verdict.is_advice,
            traceparent=self._signals.traceparent(verdict.model),
        )
        self._journal.add(decision)
        self._decisions.labels(verdict.model, verdict.action, verdict.rule).inc()
        log.info(
            "decided",
            model=verdict.model,
            action=verdict.action,
            current=verdict.current,
            target=verdict.target,
            rule=verdict.rule,
            reason=verdict.reason,
            advice=verdict.is_advice,
        )
        if decision.action != "hold":
            self._target.labels(decision.model).set(decision.target)
        if decision.action != "hold" and not decision.advice:
            self._policy.asked(decision, self._clock.now())
            self._calls.create_task(self._ask(decision), name=f"scale {decision.model}")
        self._bus.publish(DECISION, decision, model=decision.model)

    async def _ask(self, decision: Decision) -> None:
        scale = Scale(model=decision.model, instances=decision.target, decision=decision)
        try:
            accepted = await self._bus.call(SCALE, scale, timeout=CALL_SECONDS)
        except BusError as error:
            reason = error.message if isinstance(error, Refusal) else str(error)
            log.warning("scale_not_accepted", model=decision.model, target=decision.target, reason=reason)
            self._policy.refused(decision.model, self._clock.now())
            return
        if accepted.scale_id is None and accepted.recalled:
            self._policy.recalled(decision.model, self._clock.now())
        elif accepted.scale_id is None:
            # The planner knows more than has been heard here; decide again once that has caught up.
            log.info("nothing_to_scale", model=decision.model, reason=accepted.reason)
            self._policy.refused(decision.model, self._clock.now())
