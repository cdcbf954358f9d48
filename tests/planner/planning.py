"""Scale planners for tests, and what they plan."""

from msgspec.structs import replace

from livescale.services.planner.fleet import ModelView
from livescale.services.planner.scale_out import ScaleOut
from livescale.services.planner.scale_planner import ScalePlanner
from livescale.services.planner.settings import PlannerSettings
from livescale.services.planner.store import ScaleStore
from livescale.shared.messages.registry import Snapshot
from livescale.shared.messages.scaling import Decision, Scale
from livescale.shared.messages.transfers import Plan
from livescale.shared.runtime.clock import CountedIds
from livescale.shared.runtime.settings import LiveWhen, PolicyName
from tests.control.fakes import BLOCKS, manifest
from tests.planner.samples import ENTRY, VERSION


def scale_planner(policy: PolicyName, link_rate: float = 0.0) -> tuple[ScalePlanner, ScaleStore]:
    store = ScaleStore(1)
    return ScalePlanner(CountedIds(), PlannerSettings(plan_policy=policy, link_rate=link_rate), store, None), store


def live_planner(
    store: ScaleStore, *, every_hop: bool = False, when: LiveWhen = "always", link_rate: float = 1e6
) -> ScalePlanner:
    chosen = PlannerSettings(live="zigzag", live_every_hop=every_hop, live_when=when, link_rate=link_rate)
    return ScalePlanner(CountedIds(), chosen, store, None)


def planned_scale(
    planner: ScalePlanner, pool: Snapshot, instances: int, blocks: int = BLOCKS, decision: Decision | None = None
) -> ScaleOut:
    whole = manifest(VERSION)
    view = ModelView(pool, ENTRY, replace(whole, blocks=[replace(whole.blocks[0], index=i) for i in range(blocks)]))
    asked = Scale(model="m", instances=instances, decision=decision)
    scale = planner.scale(asked, view, planner.count("m", view), at=1.0)
    assert isinstance(scale, ScaleOut)
    return scale


def planned(policy: PolicyName, pool: Snapshot, instances: int, link_rate: float = 0.0) -> Plan:
    return planned_scale(scale_planner(policy, link_rate)[0], pool, instances).plan


def hops(plan: Plan) -> list[tuple[str, str]]:
    return [(flow.sender, flow.receiver) for flow in plan.flows]
