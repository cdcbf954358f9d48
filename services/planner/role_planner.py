"""Plans the roles of a model's instances: of new ones, and of those that are there. Pure."""

from livescale.services.planner.fleet import ModelView
from livescale.services.planner.role_moves import RolePlan, plan_roles
from livescale.services.planner.role_shares import choose_roles, roles_of
from livescale.services.planner.settings import PlannerSettings
from livescale.services.planner.store import ScaleStore
from livescale.shared.messages.membership import Role
from livescale.shared.messages.scaling import Decision

EVEN_SHARE = 0.5  # prefills, of new instances of which nobody says how many should


class RolePlanner:
    """Plans roles by the settings, and counts with what running scales add, remove and change."""

    def __init__(self, settings: PlannerSettings, store: ScaleStore) -> None:
        self._settings = settings
        self._store = store

    def plan(self, decision: Decision, view: ModelView, count: int) -> RolePlan:
        """Plan the roles of so many new instances and of those that are there: as the load needs, if the decision says
        so, else by a share. Instances of several ranks do everything."""
        model, settings = view.entry.spec, self._settings
        if model.disaggregation_in(settings.disaggregation) != "on":
            everything: list[Role] = ["colocated"] * count
            return RolePlan((), tuple(everything), ())
        there = self.there(view)
        if decision.roles and settings.prefill_share is None:
            return plan_roles(there, view.snapshot.workers, decision.roles, count, settings.decode_scaling)
        share = EVEN_SHARE if settings.prefill_share is None else settings.prefill_share
        roles, reasons = choose_roles(there.values(), count, share)
        return RolePlan((), tuple(roles), tuple(reasons))

    def there(self, view: ModelView) -> dict[str, Role | None]:
        """The role of each instance that stays, by its id, as running scales will have it."""
        name, store = view.entry.spec.name, self._store
        return roles_of(name, view.snapshot.workers, store.planned(name), store.leaving(), store.moving())
