"""Plans a scale-out: which spare workers form the new instances, what reaches them along which flows, and which of them
are live. Pure but for fresh ids."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from livescale.services.planner.fleet import ModelView, choose_spares, find_parked
from livescale.services.planner.live import choose_live, is_needed
from livescale.services.planner.orders import Orders
from livescale.services.planner.plans.execution_pipelines import foresee_pipelines
from livescale.services.planner.plans.plan import CannotPlan, Policy, TransferPlan
from livescale.services.planner.role_planner import RolePlanner
from livescale.services.planner.running_scale import NodeCommand
from livescale.services.planner.scale_out import ScaleOut
from livescale.services.planner.settings import PlannerSettings
from livescale.services.planner.shard_planner import ShardPlan, ShardPlanner
from livescale.services.planner.store import ScaleStore
from livescale.services.planner.targets import keeps_block_times, message_times
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.scaling import Decision, RoleMove, ScaleRecord
from livescale.shared.messages.transfers import LiveMode, Plan, PlannedInstance
from livescale.shared.runtime.clock import Ids
from livescale.shared.topology.topology import Topology


class ScaleOutPlanner:
    """Plans by the settings, and spares what running scales use."""

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
        """The scale that carries this plan out."""
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
        tickets = self._store.fresh_tickets()
        plan = Plan(
            id=self._ids.new("scale"),
            model=view.entry.spec.name,
            version=view.manifest.version,
            instances=[
                PlannedInstance(id=self._ids.new("instance"), ranks=ranks, role=role)
                for ranks, role in zip([*parked, *teams], roles, strict=True)
            ],
            flows=[flow for shard in shards for flow in shard.flows(tickets)],
            size_bytes=view.entry.size_bytes,
            reasons=list(dict.fromkeys(reasons)),
            predicted=predicted,
            predicted_blocks=message_times(ready, len(blocks)) if keeps_block_times(len(ready), len(blocks)) else {},
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
        tickets = self._store.fresh_tickets()
        flows = [flow for shard in shards for flow in shard.flows(tickets)]
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
            chunk_bytes=self._shards.chunk_bytes,
            max_model_len=view.entry.max_model_len,
            secret=self._ids.secret(),
            tbt_slo=self._settings.tbt_slo if is_auto else None,
        )


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
