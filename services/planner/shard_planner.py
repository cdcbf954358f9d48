"""How one shard of a model gets to the workers that miss it: from where, by which plan, and how long that takes. Pure.

An instance of one worker has one shard, which is the whole model. What a scheduled block costs is measured here.
"""

from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import NamedTuple

from livescale.services.planner.delivery import Delivery
from livescale.services.planner.fleet import ModelView
from livescale.services.planner.plans.make_plan import make_plan, predict
from livescale.services.planner.plans.plan import Multicast, Policy, TransferPlan
from livescale.services.planner.settings import PlannerSettings
from livescale.services.planner.store import ScaleStore
from livescale.services.planner.supply import Supply, explain_unknown, find_places
from livescale.services.planner.targets import BlockTimes, MessageTimes, keeps_block_times, known_times, message_times
from livescale.shared.messages.scaling import ScaleRecord
from livescale.shared.topology.topology import Topology

FIRST_SECONDS = 0.005  # what a block costs until that is measured
WEIGHT = 0.3  # of the last plan in the average


class ShardPlan(NamedTuple):
    """A transfer plan for one shard, with the pool and the multicast that it was made from."""

    supply: Supply
    multicast: Multicast
    made: TransferPlan


class ShardPlanner:
    """Makes transfer plans by the planner's settings, around what running scales send and receive.

    It measures what a scheduled block costs in the scales that have ended, and plans by that.
    """

    def __init__(self, settings: PlannerSettings, store: ScaleStore, topology: Topology | None) -> None:
        self._settings = settings
        self._store = store
        self._topology = topology
        self._block_cost = BlockCost()

    @property
    def block_seconds(self) -> float:
        """What a scheduled block costs besides its bytes, as far as that has been measured."""
        return self._block_cost.seconds

    def learn(self, record: ScaleRecord) -> None:
        """Measure in a scale that has ended what a block costs."""
        self._block_cost.learn(record)

    def plan(self, view: ModelView, policy: Policy, shard: int, missing: Mapping[str, Iterable[int]]) -> ShardPlan:
        """A plan that gives each worker the blocks of the shard that it misses. Raises CannotPlan."""
        supply = self._supply(view, shard)
        multicast = supply.multicast(missing, self._store.live(), disks=policy == "local")
        return ShardPlan(supply, multicast, make_plan(policy, multicast, block_seconds=self.block_seconds))

    def replan(self, view: ModelView, delivery: Delivery, shard: int) -> ShardPlan | None:
        """Chains for the stranded targets of a delivery, whatever the policy; None where none lacks anything of this
        shard. Raises CannotPlan."""
        supply = self._supply(view, shard)
        lacking = {id: blocks for id, blocks in delivery.lacking.items() if delivery.orders.rank_of(id) == shard}
        if not lacking:
            return None
        multicast = supply.multicast(lacking, delivery.stranded.avoid | self._store.live())
        return ShardPlan(supply, multicast, make_plan("chains", multicast))

    def explain(self, view: ModelView, shard: ShardPlan) -> list[str]:
        """Why the plan is as it is: its sources, the policy's own reasons, and what had to be assumed."""
        made, unknown = shard.made, explain_unknown(view.snapshot, view.silent)
        sources = dict.fromkeys(flow.sender for flow in made.flows if flow.sender not in made.targets)
        costs = [self._block_cost.reason] if any(flow.steps for flow in made.flows) else []
        return [*map(shard.supply.describe, sources), *made.reasons, *unknown, *costs]

    def predict(self, multicast: Multicast, made: TransferPlan) -> BlockTimes:
        """In how many seconds each block is whole, by target and block; empty where links have no known rate."""
        if not self._settings.link_rate:
            return {}
        prediction = predict(multicast, made, self._settings.chunk_bytes, self.block_seconds)
        setup = self._settings.group_setup_s if made.policy == "ring" else 0.0
        ready = {target: prediction.ready[target].items() for target in made.targets}
        return {target: {block: setup + at for block, at in times} for target, times in ready.items()}

    def told(self, ready: BlockTimes, blocks: int) -> MessageTimes:
        """Predicted times as messages have them; none where there are too many of them."""
        return message_times(ready, blocks) if keeps_block_times(len(ready), blocks) else {}

    def predict_rest(self, view: ModelView, delivery: Delivery) -> BlockTimes:
        """The same for what is still missing of a delivery with one shard."""
        missing = {flow.receiver: delivery.arrivals.missing(flow.receiver) for flow in delivery.flows}
        return self.predict(*self._supply(view, 0).rest(delivery.flows, missing))

    def _supply(self, view: ModelView, shard: int) -> Supply:
        receiving = self._store.receiving(view.manifest.version, shard)
        places = find_places(view.snapshot.members, self._topology, self._settings.link_rate)
        manifest = view.manifest.of_shard(shard)
        return Supply(view.snapshot, manifest, places, self._store.sending(), receiving, view.silent)


class BlockCost:
    """What a scheduled block costs besides its bytes: turns, messages, checksums, whatever comes with every block.

    It is a moving average over the scheduled plans that have been carried out.
    """

    def __init__(self) -> None:
        self._measured: float | None = None
        self._plans = 0

    @property
    def seconds(self) -> float:
        """The measured cost, or an assumed one while nothing has been measured."""
        return FIRST_SECONDS if self._measured is None else self._measured

    @property
    def reason(self) -> str:
        """A sentence for the plan's reasons: the cost, and where it comes from."""
        source = (
            f"measured in {self._plans} plan{'s' * (self._plans > 1)}"
            if self._plans
            else "assumed, for nothing was measured yet"
        )
        return f"a block costs {self.seconds * 1000:.3g} ms besides its bytes: {source}"

    def learn(self, record: ScaleRecord) -> None:
        """Measure a scale out that was done as planned. Others say nothing, nor do plans without predicted times."""
        if record.state != "done" or any(phase.name == "replanned" for phase in record.phases):
            return
        costs = list(measure_block_cost(record))
        if costs:
            cost = max(0.0, median(costs))
            self._measured = cost if self._measured is None else WEIGHT * cost + (1 - WEIGHT) * self._measured
            self._plans += 1


def measure_block_cost(record: ScaleRecord) -> Iterator[float]:
    """Yield a cost in seconds for each target with a schedule: by how much a step took longer than predicted.

    Only the time from a target's first to its last step counts, as what precedes and follows them comes once a plan.
    """
    plan = record.plan
    if plan is None:
        return
    for target, times in plan.predicted_blocks.items():
        steps = {
            block: step
            for flow in plan.flows
            if flow.receiver == target
            for block, step in zip(flow.blocks, flow.steps, strict=False)
        }
        predicted, arrived = known_times(times), known_times(record.arrived.get(target, []))
        if not steps or not steps.keys() <= arrived.keys() & predicted.keys():
            continue
        order = sorted(steps, key=lambda block: (steps[block], predicted[block]))
        first, last = order[0], order[-1]
        count = steps[last] - steps[first]
        if count:
            longer = (arrived[last] - arrived[first]) - (predicted[last] - predicted[first])
            yield plan.block_seconds + longer / count
