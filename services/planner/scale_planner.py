"""Makes a scale that can be carried out from what was asked for and the view of the pool. Pure but for fresh ids."""

from collections.abc import Sequence

from livescale.services.planner.fleet import (
    ModelFleet,
    ModelView,
    ServingInstance,
    choose_to_drain,
    count_fleet,
    find_instances,
)
from livescale.services.planner.plans.plan import CannotPlan
from livescale.services.planner.role_planner import RolePlanner
from livescale.services.planner.role_switch import RoleSwitch
from livescale.services.planner.running_scale import NodeCommand
from livescale.services.planner.scale_in import ScaleIn
from livescale.services.planner.scale_out import ScaleOut
from livescale.services.planner.scale_out_planner import ScaleOutPlanner
from livescale.services.planner.settings import PlannerSettings
from livescale.services.planner.store import ScaleStore
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.scaling import Decision, Scale, ScaleRecord
from livescale.shared.messages.transfers import LiveMode
from livescale.shared.runtime.clock import Ids
from livescale.shared.topology.topology import Topology


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
        # The manifest of a version that was replaced is not known any more: its targets are given up.
        known = workers if record.plan.version == view.manifest.version else []
        return scale_out, scale_out.take_over(record, {report.id: report for report in known}, now)

    def replan(self, scale: ScaleOut, view: ModelView, now: float) -> list[NodeCommand]:
        """Send the stranded targets of a scale what they lack, and return the commands."""
        try:
            return self.out.replan(scale, view, now)
        except CannotPlan as error:
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
