"""Makes a scale that can be carried out from what was asked for and the view of the pool. Pure but for fresh ids."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from livescale.services.planner.fleet import (
    ModelFleet,
    ModelView,
    ServingInstance,
    choose_spares,
    choose_to_drain,
    count_fleet,
    find_instances,
    find_parked,
)
from livescale.services.planner.live import choose_live, foresee_pipelines, is_needed
from livescale.services.planner.orders import Orders, ticketed
from livescale.services.planner.plans.plan import CannotPlan, Policy, TransferPlan
from livescale.services.planner.role_planner import RolePlanner
from livescale.services.planner.role_switch import RoleSwitch
from livescale.services.planner.running_scale import NodeCommand
from livescale.services.planner.scale_in import ScaleIn
from livescale.services.planner.scale_out import ScaleOut
from livescale.services.planner.settings import PlannerSettings
from livescale.services.planner.shard_planner import ShardPlan, ShardPlanner
from livescale.services.planner.store import ScaleStore
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.scaling import Decision, RoleMove, Scale, ScaleRecord
from livescale.shared.messages.transfers import Flow, LiveMode, Plan, PlannedInstance
from livescale.shared.runtime.clock import Ids
from livescale.shared.topology.topology import Topology

REPLACED = "another version has taken its place"


class ScalePlanner:
    """Plans scales by the settings, and counts with what running scales add, remove and use.

    Its methods raise Refusal where nothing can be done. `out` plans what is to be added.
    """

    def __init__(self, ids: Ids, settings: PlannerSettings, store: ScaleStore, topology: Topology | None) -> None:
        self._ids = ids
        self._settings = settings
        self._store = store
        self.out = ScaleOutPlanner(ids, settings, store, topology)
        self._roles = RolePlanner(settings, store)

    def count(self, model: str, view: ModelView) -> ModelFleet:
        """Count the instances of a model: those that are there, with what running scales add and remove."""
        workers = view.snapshot.workers
        return count_fleet(model, workers, self._store.coming(model), self._store.leaving())

    def scale(self, asked: Scale, view: ModelView, fleet: ModelFleet, at: float) -> ScaleIn | ScaleOut | RoleSwitch:
        """Plan a scale to another number of instances than there are, or to other roles of as many; `at` is the wall
        time at which it was asked for."""
        actual = len(fleet.present)
        decision = asked.decision or self._by_operator(asked, actual, at)
        if asked.instances == actual:
            return self._plan_switch(decision, view, at)
        if asked.instances < actual:
            return self._plan_in(decision, view, fleet, actual - asked.instances)
        return self._plan_out(decision, view, asked.instances - actual, asked.live or self._settings.live)

    def take_over(
        self, record: ScaleRecord, view: ModelView, now: float
    ) -> tuple[ScaleIn | ScaleOut | RoleSwitch, list[NodeCommand]]:
        """Return a scale that an earlier planner began, and the commands by which it continues."""
        workers = view.snapshot.workers
        if record.decision.action == "switch":
            switch = RoleSwitch(record.id, record.decision, record.moves, now)
            return switch, switch.take_over(record, now)
        if record.plan is None:
            drained = find_instances(frozenset(record.instances), workers)
            scale_in = self._scale_in(record.id, record.decision, drained, view)
            return scale_in, scale_in.take_over(record, now)
        scale_out = self.out.scale(record.decision, record.plan, view, record.moves)
        noted = self._store.with_drained(record, record.plan, now)
        if record.plan.version != view.manifest.version:  # its manifest is not known any more
            absent = f"had to load a version that is not there any more: {REPLACED}"
            return scale_out, scale_out.take_over(noted, {}, now, absent)
        return scale_out, scale_out.take_over(noted, {report.id: report for report in workers}, now)

    def replan(self, scale: ScaleOut, view: ModelView, now: float) -> list[NodeCommand]:
        """Send the stranded targets of a scale what they lack, and return the commands. Where nobody can send them a
        version that was replaced, or a model that is being removed, they are given up at once: no host reads it again.
        """
        try:
            return self.out.replan(scale, view, now)
        except CannotPlan as error:
            if scale.plan.version != view.manifest.version:
                return scale.give_up(f"{error}, and {REPLACED}", now)
            if view.entry.state == "removing":
                return scale.give_up(f"{error}, and it is being removed", now)
            raise Refusal(503, str(error), retry_after_ms=1000) from error

    def _by_operator(self, asked: Scale, actual: int, at: float) -> Decision:
        return Decision(
            id=self._ids.new("decision"),
            model=asked.model,
            at=at,
            action="in" if asked.instances < actual else "out",
            current=actual,
            target=asked.instances,
            rule="operator",
            reason="an operator asked for it",
            by="operator",
        )

    def choose_to_recall(self, asked: Scale, view: ModelView, missing: int) -> list[tuple[ScaleIn, list[str]]]:
        """Choose up to so many instances that drain and are to serve again, of each scale in: those of the roles that
        the model lacks first. They have their parameters, so nothing is faster."""
        scales = [one for one in self._store.running() if isinstance(one, ScaleIn) and one.model == asked.model]
        able = [(scale, worker) for scale in scales for worker in scale.may_recall(view.manifest.version)]
        roles = {report.id: report.role for report in view.snapshot.workers}
        wanted = {} if asked.decision is None else asked.decision.roles
        there = list(self._roles.there(view).values())
        able.sort(key=lambda one: there.count(role := roles.get(one[1])) - (wanted.get(role, 0) if role else 0))
        chosen = able[: max(0, missing)]
        return [(scale, [worker for of, worker in chosen if of is scale]) for scale in scales]

    def has_to_switch(self, asked: Scale, view: ModelView) -> bool:
        """Say whether instances have to get other roles, to have those that were asked for."""
        return asked.decision is not None and bool(self._roles.plan(asked.decision, view, 0).moves)

    def _plan_switch(self, decision: Decision, view: ModelView, at: float) -> RoleSwitch:
        moves = self._roles.plan(decision, view, 0).moves
        return RoleSwitch(self._ids.new("scale"), decision, moves, at)

    def _plan_in(self, decision: Decision, view: ModelView, fleet: ModelFleet, count: int) -> ScaleIn:
        drained = choose_to_drain(fleet, count, view.manifest.version, self._roles.there(view), decision.roles)
        if not drained:
            loading = f"{len(fleet.present) - len(fleet.serving)} of {len(fleet.present)} still load"
            why = f"no instance of {decision.model!r} can be drained: {loading}, and the last that serves has to stay"
            raise Refusal(503, f"{why}; ask again in a moment", 1000)
        return self._scale_in(self._ids.new("scale"), decision, drained, view)

    def _scale_in(self, id: str, decision: Decision, drained: Sequence[ServingInstance], view: ModelView) -> ScaleIn:
        return ScaleIn(id, decision, drained, view.epochs, self._settings.drain_seconds)

    def _plan_out(self, decision: Decision, view: ModelView, count: int, live: LiveMode) -> ScaleOut:
        try:
            plan, moves = self.out.plan(decision, view, count, live)
        except CannotPlan as error:
            raise Refusal(503, f"cannot scale {decision.model!r} out: {error}", retry_after_ms=1000) from error
        return self.out.scale(decision, plan, view, moves)


class ScaleOutPlanner:
    """Plans a scale-out: which spare workers form the new instances, what reaches them along which flows, and which are
    live. It spares what running scales use."""

    def __init__(self, ids: Ids, settings: PlannerSettings, store: ScaleStore, topology: Topology | None) -> None:
        self._ids = ids
        self._settings = settings
        self._store = store
        self._shards = ShardPlanner(settings, store, topology)
        self._roles = RolePlanner(settings, store)

    def learn(self, record: ScaleRecord) -> None:
        """Measure in a scale that has ended what a scheduled block costs."""
        self._shards.learn(record)

    def scale(self, decision: Decision, plan: Plan, view: ModelView, moves: Sequence[RoleMove]) -> ScaleOut:
        """Make the state machine that carries this plan out, with the orders that it gives."""
        timeout = self._settings.patience_seconds
        return ScaleOut(plan.id, decision, self._orders(plan, view), timeout, view.snapshot.workers, moves)

    def plan(self, decision: Decision, view: ModelView, count: int, live: LiveMode) -> tuple[Plan, Sequence[RoleMove]]:
        """Plan as many new instances as there are spare workers for, at least one, and which of those that are there
        get another role. Raises CannotPlan."""
        groups, why = choose_spares(view.snapshot, view.entry, count, self._store.reserved())
        parked, groups = _split(groups, find_parked(view.snapshot, view.manifest.version))
        policy, blocks = self._choose_policy(live), range(len(view.manifest.of_shard(0).blocks))
        shards = [
            self._shards.plan(view, policy, shard, dict.fromkeys(ranks, blocks))
            for shard, ranks in enumerate(zip(*groups, strict=True))
        ]
        # Shards share links: a prediction of one of them does not know what the others carry.
        ready = self._shards.predict(shards[0].multicast, shards[0].made) if len(shards) == 1 else {}
        predicted = {target: max(times.values()) for target, times in ready.items()}
        teams = _teams(groups, shards)
        plans = [shard.made for shard in shards]
        live_targets, why_live = self._choose_live(live, decision, plans, teams, predicted)
        tied = view.manifest.config.tie_word_embeddings
        moves, roles, why_roles = self._roles.plan(decision, view, len(parked) + len(teams))
        if parked:  # they decode first, as they need not be live
            roles = tuple(sorted(roles, key=lambda role: role != "decode"))
        why_plan = [reason for shard in shards for reason in self._shards.explain(view, shard)]
        why_plan += [f"{', '.join(one[0] for one in parked)}: the parameters are there still"] if parked else []
        reasons = [why, *why_plan, *why_live, *why_roles]
        plan = Plan(
            id=self._ids.new("scale"),
            model=view.entry.spec.name,
            version=view.manifest.version,
            instances=[
                PlannedInstance(id=self._ids.new("instance"), ranks=ranks, role=role)
                for ranks, role in zip([*parked, *teams], roles, strict=True)
            ],
            flows=_flows(shards, self._store.fresh_tickets()),
            size_bytes=view.entry.size_bytes,
            reasons=list(dict.fromkeys(reasons)),
            predicted=predicted,
            predicted_blocks=self._shards.told(ready, len(blocks)),
            block_seconds=self._shards.block_seconds,
            setup_seconds=self._settings.group_setup_s if policy == "ring" else 0.0,
            live=live,
            live_targets=live_targets,
            parked=[worker for ranks in parked for worker in ranks],
            pipelines=foresee_pipelines(plans, teams, ready, tied=tied) if live == "pipeline" and live_targets else [],
        )
        return plan, moves

    def _choose_policy(self, live: LiveMode) -> Policy:
        """Return the policy for this mode. Raises Refusal 400 if the set policy does not suit the mode asked for."""
        try:
            return self._settings.policy_for(live)
        except ValueError as error:
            raise Refusal(400, str(error)) from None

    def _choose_live(
        self,
        mode: LiveMode,
        decision: Decision,
        plans: Sequence[TransferPlan],
        teams: Sequence[Sequence[str]],
        predicted: Mapping[str, float],
    ) -> tuple[list[str], list[str]]:
        """Choose the targets that are live, and say why. `predicted`: in how many seconds each target is whole, as far
        as known."""
        if not teams:
            return [], []
        live, why = choose_live(mode, plans, teams, every_hop=self._settings.live_every_hop)
        if not live or self._settings.live_when == "always":
            return live, why
        needed, reason = is_needed(decision, predicted.values(), self._settings.ttft_slo)
        return (live, [*why, reason]) if needed else ([], [reason])

    def replan(self, scale: ScaleOut, view: ModelView, now: float) -> list[NodeCommand]:
        """Send the stranded targets of a scale what they lack along chains, whatever the policy. Raises CannotPlan."""
        delivery = scale.delivery
        if not delivery.lacking:
            return []
        view = view._replace(manifest=delivery.orders.manifest)  # another version may have taken the place of this one
        plans = [self._shards.replan(view, delivery, shard) for shard in range(view.manifest.shards)]
        shards = [plan for plan in plans if plan is not None]
        flows = _flows(shards, self._store.fresh_tickets())
        reasons = [reason for shard in shards for reason in shard.made.reasons]
        commands = scale.replan(flows, view.members, reasons, now)
        if view.manifest.shards == 1:
            delivery.expect(self._shards.predict_rest(view, delivery), now)
        return commands

    def _orders(self, plan: Plan, view: ModelView) -> Orders:
        is_auto = view.entry.spec.disaggregation_in(self._settings.disaggregation) == "auto"
        return Orders(
            plan=plan,
            spec=view.entry.spec,
            manifest=view.manifest,
            members=view.members,
            chunk_bytes=self._settings.chunk_bytes,
            max_model_len=view.entry.max_model_len,
            secret=self._ids.secret(),
            tbt_slo=self._settings.tbt_slo if is_auto else None,
        )


def _flows(shards: Iterable[ShardPlan], tickets: Iterator[int]) -> list[Flow]:
    """The flows of plans as messages have them, each with a ticket of its own."""
    return [
        flow
        for shard in shards
        for flow in ticketed(shard.made, len(shard.multicast.block_bytes), tickets, shard.multicast.disks)
    ]


def _split(groups: Sequence[list[str]], parked: AbstractSet[str]) -> tuple[list[list[str]], list[list[str]]]:
    """Return the instances whose only worker has all parameters still, and the others."""
    there = [one for one in groups if len(one) == 1 and one[0] in parked]
    return there, [one for one in groups if one not in there]


def _teams(groups: Sequence[Sequence[str]], shards: Sequence[ShardPlan]) -> list[list[str]]:
    """Return the workers of each instance, in the order in which the first ranks get their shard.

    Raises CannotPlan where another rank gets none.
    """
    if not groups:
        return []
    ranks = {group[0]: list(group) for group in groups}
    teams = [ranks[leader] for leader in shards[0].made.targets]
    for team in teams:
        for worker, shard in zip(team, shards, strict=True):
            if worker not in shard.made.targets:
                raise CannotPlan(f"{worker} cannot be reached")
    return teams
