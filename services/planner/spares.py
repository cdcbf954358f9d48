"""Which workers a new instance gets. Pure."""

from collections import Counter
from collections.abc import Set as AbstractSet

from services.planner.plans.plan import CannotPlan
from shared.messages.membership import Member, ModelEntry, Snapshot


def find_alive(snapshot: Snapshot) -> dict[str, Member]:
    """Suspects take part in nothing new, nor does who has not told where to connect to."""
    return {member.id: member for member in snapshot.members if member.lease == "alive" and member.address}


def choose_spares(
    snapshot: Snapshot, model: ModelEntry, count: int, reserved: AbstractSet[str]
) -> tuple[list[str], str]:
    """Up to `count` spare workers that fit, spread over machines: the one with the fewest instances of the model comes
    next. Those that are `reserved` belong to running plans. Returns why, too. Raises CannotPlan where there is none."""
    alive = find_alive(snapshot)
    spare = [r for r in snapshot.workers if r.state == "spare" and r.id in alive and r.id not in reserved]
    left = {r.id: alive[r.id].host for r in spare if r.arena_bytes >= model.size_bytes}
    if not left:
        raise CannotPlan(
            f"no spare worker fits: {len(spare)} spare, {len(reserved)} in running plans, "
            f"{model.size_bytes} bytes of parameters"
        )
    crowd = Counter(alive[r.id].host for r in snapshot.workers if r.id in alive and r.model == model.spec.name)
    chosen: list[str] = []
    while left and len(chosen) < count:
        best = min(left, key=lambda id: (crowd[left[id]], id))
        crowd[left.pop(best)] += 1
        chosen.append(best)
    short = f"; {count - len(chosen)} more were wanted" if len(chosen) < count else ""
    return chosen, f"targets {', '.join(chosen)}: spare, spread over machines{short}"
