"""From what was asked for, and the picture of the pool, to a scale that can be carried out. Pure but for fresh ids."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from livescale.services.planner.block_cost import BlockCost
from livescale.services.planner.book import Book
from livescale.services.planner.fleet import Fleet, Serving, choose_to_drain, count_fleet, find_instances
from livescale.services.planner.live_help import choose_live
from livescale.services.planner.live_need import is_needed
from livescale.services.planner.orders import Orders, ticketed
from livescale.services.planner.pipelines import foresee_pipelines
from livescale.services.planner.places import find_places
from livescale.services.planner.plans.chains import plan_chains
from livescale.services.planner.plans.choose import make_plan
from livescale.services.planner.plans.network import Multicast
from livescale.services.planner.plans.plan import CannotPlan, Policy, TransferPlan
from livescale.services.planner.plans.predict import predict
from livescale.services.planner.scale_in import ScaleIn
from livescale.services.planner.scale_out import ScaleOut
from livescale.services.planner.scales import Command
from livescale.services.planner.serving_traffic import explain_unknown
from livescale.services.planner.settings import PlannerSettings
from livescale.services.planner.spares import choose_spares
from livescale.services.planner.supply import Supply
from livescale.services.planner.times import BlockTimes, are_told, told
from livescale.services.planner.view import View
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.registry import Snapshot
from livescale.shared.messages.scaling import Decision, Scale, ScaleRecord
from livescale.shared.messages.transfers import Flow, LiveMode, Plan, PlannedInstance
from livescale.shared.runtime.clock import Ids
from livescale.shared.runtime.settings import check_plan_policy
from livescale.shared.topology.topology import Topology
from livescale.shared.transfer.chunks import chunk_bytes_for


class ShardPlan(NamedTuple):
    """How a shard gets to those who need it, be it the whole model."""

    supply: Supply
    multicast: Multicast
    made: TransferPlan

    def flows(self, tickets: Iterator[int]) -> list[Flow]:
        return ticketed(self.made, len(self.multicast.block_bytes), tickets, self.multicast.disks)


class Drafts:
    """Counts what is there, coming and leaving by the book; every method raises Refusal where nothing can be done."""

    def __init__(self, ids: Ids, settings: PlannerSettings, book: Book, topology: Topology | None) -> None:
        self._ids = ids
        self._settings = settings
        self._book = book
        self._topology = topology
        self._block_cost = BlockCost()

    def learn(self, record: ScaleRecord) -> None:
        """From a scale that has ended: what a block costs."""
        self._block_cost.learn(record)

    def count(self, model: str, view: View) -> Fleet:
        workers = view.snapshot.workers
        return count_fleet(model, workers, self._book.coming(model), self._book.leaving())

    def scale(self, asked: Scale, view: View, fleet: Fleet, at: float) -> ScaleIn | ScaleOut:
        """For another number of instances than there are."""
        actual = len(fleet.present)
        decision = asked.decision or self._by_operator(asked, actual, at)
        if asked.instances < actual:
            return self._plan_in(decision, view, fleet, actual - asked.instances)
        return self._plan_out(decision, view, asked.instances - actual, asked.live or self._settings.live)

    def take_over(self, record: ScaleRecord, view: View, now: float) -> tuple[ScaleIn | ScaleOut, list[Command]]:
        """What an earlier planner began, and how it goes on."""
        workers = view.snapshot.workers
        if record.plan is None:
            drained = find_instances(frozenset(record.instances), workers)
            scale_in = self._scale_in(record.id, record.decision, drained, view)
            return scale_in, scale_in.take_over(record, now)
        scale_out = self._scale_out(record.decision, record.plan, view)
        # Nobody knows the manifest of a version that was replaced: its targets are given up.
        known = workers if record.plan.version == view.manifest.version else []
        return scale_out, scale_out.take_over(record, {report.id: report for report in known}, now)

    def _by_operator(self, asked: Scale, actual: int, at: float) -> Decision:
        return Decision(
            id=self._ids.new("decision"),
            model=asked.model,
            at=at,
            action="in" if asked.instances < actual else "out",
            current=actual,
            target=asked.instances,
            rule="operator",
            reason="asked for by hand",
            by="operator",
        )

    def _plan_in(self, decision: Decision, view: View, fleet: Fleet, count: int) -> ScaleIn:
        drained = choose_to_drain(fleet, count, view.manifest.version)
        if not drained:
            raise Refusal(503, f"nothing of {decision.model!r} can be drained: its instances still load", 1000)
        return self._scale_in(self._ids.new("scale"), decision, drained, view)

    def _scale_in(self, id: str, decision: Decision, drained: Sequence[Serving], view: View) -> ScaleIn:
        return ScaleIn(id, decision, drained, _epochs(view.snapshot), self._settings.drain_seconds)

    def _plan_out(self, decision: Decision, view: View, count: int, live: LiveMode) -> ScaleOut:
        try:
            plan = self._plan(decision, view, count, live)
        except CannotPlan as error:
            raise Refusal(503, f"cannot scale {decision.model!r} out: {error}", retry_after_ms=1000) from error
        return self._scale_out(decision, plan, view)

    def _scale_out(self, decision: Decision, plan: Plan, view: View) -> ScaleOut:
        patience = self._settings.patience_seconds
        return ScaleOut(plan.id, decision, self._orders(plan, view), patience, view.snapshot.workers)

    def _plan(self, decision: Decision, view: View, count: int, live: LiveMode) -> Plan:
        """For as many new instances as there are spare workers, at least one. Raises CannotPlan."""
        groups, why = choose_spares(view.snapshot, view.entry, count, self._book.reserved())
        policy, blocks = self._choose_policy(live), range(len(view.manifest.of_shard(0).blocks))
        shards = [
            self._plan_shard(view, policy, shard, dict.fromkeys(ranks, blocks))
            for shard, ranks in enumerate(zip(*groups, strict=True))
        ]
        first, alone = shards[0], len(shards) == 1
        # Shards share links, which no prediction of one of them knows.
        ready = self._predict(first.multicast, first.made) if alone else {}
        predicted = {target: max(times.values()) for target, times in ready.items()}
        teams = _teams(groups, shards)
        plans = [shard.made for shard in shards]
        live_targets, why_live = self._choose_live(live, decision, plans, teams, predicted)
        tied = view.manifest.config.tie_word_embeddings
        reasons = [why, *(reason for shard in shards for reason in self._explain(view, shard)), *why_live]
        tickets = self._book.fresh_tickets()
        return Plan(
            id=self._ids.new("scale"),
            model=view.entry.spec.name,
            version=view.manifest.version,
            instances=[PlannedInstance(id=self._ids.new("instance"), ranks=ranks) for ranks in teams],
            flows=[flow for shard in shards for flow in shard.flows(tickets)],
            size_bytes=view.entry.size_bytes,
            reasons=list(dict.fromkeys(reasons)),
            predicted=predicted,
            predicted_blocks=told(ready, len(blocks)) if are_told(len(ready), len(blocks)) else {},
            block_seconds=self._block_cost.seconds,
            live=live,
            live_targets=live_targets,
            pipelines=foresee_pipelines(plans, teams, ready, tied=tied) if live == "pipeline" and live_targets else [],
        )

    def _plan_shard(self, view: View, policy: Policy, shard: int, missing: Mapping[str, Iterable[int]]) -> ShardPlan:
        """What each of these workers misses of this shard. Raises CannotPlan."""
        supply = self._supply(view, shard)
        multicast = supply.multicast(missing, self._book.live(), disks=policy == "local")
        return ShardPlan(supply, multicast, make_plan(policy, multicast, block_seconds=self._block_cost.seconds))

    def _choose_policy(self, live: LiveMode) -> Policy:
        """Raises Refusal 400 for one that does not go with the mode that this scale was asked for in."""
        try:
            check_plan_policy(self._settings.plan_policy, live)
        except ValueError as error:
            raise Refusal(400, str(error)) from None
        return self._settings.policy_for(live)

    def _choose_live(
        self,
        mode: LiveMode,
        decision: Decision,
        plans: Sequence[TransferPlan],
        teams: Sequence[Sequence[str]],
        predicted: Mapping[str, float],
    ) -> tuple[list[str], list[str]]:
        """`predicted`: in how many seconds each target is whole, where that is known."""
        live, why = choose_live(mode, plans, teams, every_hop=self._settings.live_every_hop)
        if not live or self._settings.live_when == "always":
            return live, why
        needed, reason = is_needed(decision, predicted.values(), self._settings.ttft_slo)
        return (live, [*why, reason]) if needed else ([], [reason])

    def _explain(self, view: View, shard: ShardPlan) -> list[str]:
        made, unknown = shard.made, explain_unknown(view.snapshot, view.silent)
        sources = dict.fromkeys(flow.sender for flow in made.flows if flow.sender not in made.targets)
        costs = [self._block_cost.reason] if any(flow.steps for flow in made.flows) else []
        return [*map(shard.supply.describe, sources), *made.reasons, *unknown, *costs]

    def _predict(self, multicast: Multicast, made: TransferPlan) -> BlockTimes:
        """Seconds by target and block, where it is known what links carry."""
        if not self._settings.link_rate:
            return {}
        chunk_bytes = chunk_bytes_for(self._settings.link_rate)
        prediction = predict(multicast, made, chunk_bytes, self._block_cost.seconds)
        return {target: dict(prediction.ready[target]) for target in made.targets}

    def replan(self, scale: ScaleOut, view: View, now: float) -> list[Command]:
        """Another way for those of its targets that are stranded: by chains, whatever the policy. Raises CannotPlan."""
        delivery = scale.delivery
        if not delivery.lacking:
            return []
        view = view._replace(manifest=delivery.orders.manifest)  # another version may have taken the place of this one
        shards = [self._replan_shard(view, scale, shard) for shard in range(view.manifest.shards)]
        tickets = self._book.fresh_tickets()
        flows = [flow for shard in shards if shard is not None for flow in shard.flows(tickets)]
        reasons = [reason for shard in shards if shard is not None for reason in shard.made.reasons]
        members = {member.id: member for member in view.snapshot.members}
        commands = scale.replan(flows, members, reasons, now)
        if view.manifest.shards == 1:
            missing = {flow.receiver: delivery.times.missing(flow.receiver) for flow in delivery.flows}
            delivery.expect(self._predict(*self._supply(view, 0).rest(delivery.flows, missing)), now)
        return commands

    def _replan_shard(self, view: View, scale: ScaleOut, shard: int) -> ShardPlan | None:
        """None where nobody lacks anything of it. Raises CannotPlan."""
        delivery, supply = scale.delivery, self._supply(view, shard)
        lacking = {id: blocks for id, blocks in delivery.lacking.items() if delivery.orders.rank_of(id) == shard}
        if not lacking:
            return None
        multicast = supply.multicast(lacking, delivery.stranded.avoid | self._book.live())
        return ShardPlan(supply, multicast, plan_chains(multicast))

    def _supply(self, view: View, shard: int) -> Supply:
        receiving = self._book.receiving(view.manifest.version, shard)
        places = find_places(view.snapshot.members, self._topology, self._settings.link_rate)
        manifest = view.manifest.of_shard(shard)
        return Supply(view.snapshot, manifest, places, self._book.sending(), receiving, view.silent)

    def _orders(self, plan: Plan, view: View) -> Orders:
        return Orders(
            plan=plan,
            spec=view.entry.spec,
            manifest=view.manifest,
            members={member.id: member for member in view.snapshot.members},
            chunk_bytes=chunk_bytes_for(self._settings.link_rate),
            max_model_len=view.entry.max_model_len,
            secret=self._ids.secret(),
        )


def _teams(groups: Sequence[Sequence[str]], shards: Sequence[ShardPlan]) -> list[list[str]]:
    """The instances, by when the first rank of each gets its shard. Raises CannotPlan where another gets none."""
    ranks = {group[0]: list(group) for group in groups}
    teams = [ranks[leader] for leader in shards[0].made.targets]
    for team in teams:
        for worker, shard in zip(team, shards, strict=True):
            if worker not in shard.made.targets:
                raise CannotPlan(f"{worker} cannot be reached")
    return teams


def check_target(asked: Scale, view: View) -> None:
    """Raises Refusal 400 for more or fewer instances than the model may have, 409 for one that is being removed.

    The monitor may have to do with fewer, and with one more while an instance of another version is replaced.
    """
    spec = view.entry.spec
    least = spec.min_instances if asked.decision is None else 0
    most = spec.max_instances + (asked.decision is not None and asked.decision.rule == "version")
    if view.entry.state == "removing" and asked.instances > 0:
        raise Refusal(409, f"model {spec.name!r} is being removed")
    if not least <= asked.instances <= most:
        raise Refusal(
            400,
            f"instances must be {spec.min_instances} to {spec.max_instances} for {spec.name!r}, not {asked.instances}; "
            "register the model again with other limits",
        )


def _epochs(snapshot: Snapshot) -> dict[str, int]:
    return {member.id: member.epoch for member in snapshot.members}
