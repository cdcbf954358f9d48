"""Which workers a new instance gets. Pure."""

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from livescale.services.planner.plans.plan import CannotPlan
from livescale.shared.messages.membership import Member
from livescale.shared.messages.registry import ModelEntry, Snapshot


def find_alive(snapshot: Snapshot) -> dict[str, Member]:
    """Suspects take part in nothing new, nor does who has not told where to connect to."""
    return {member.id: member for member in snapshot.members if member.lease == "alive" and member.address}


def choose_spares(
    snapshot: Snapshot, model: ModelEntry, count: int, reserved: AbstractSet[str]
) -> tuple[list[list[str]], str]:
    """The ranks of up to `count` instances: spare workers that fit, spread over machines: the one with the fewest
    workers of the model comes next. Those that are `reserved` belong to running plans. Returns why, too. Raises
    CannotPlan where there are too few for one."""
    alive, ranks = find_alive(snapshot), model.spec.tensor_parallel_size
    spare = [r for r in snapshot.workers if r.state == "spare" and r.id in alive and r.id not in reserved]
    left = {r.id: alive[r.id].host for r in spare if r.arena_bytes >= model.rank_bytes}
    if len(left) < ranks:
        fit = "no spare worker fits" if ranks == 1 else f"an instance needs {ranks} spare workers, {len(left)} fit"
        raise CannotPlan(
            f"{fit}: {len(spare)} spare, {len(reserved)} in running plans, {model.rank_bytes} bytes of parameters"
        )
    crowd = Counter(alive[r.id].host for r in snapshot.workers if r.id in alive and r.model == model.spec.name)
    chosen: list[list[str]] = []
    while len(left) >= ranks and len(chosen) < count:
        chosen.append(_choose_ranks(left, ranks, crowd))
        crowd.update(left.pop(id) for id in chosen[-1])
    short = f"; {count - len(chosen)} more were wanted" if len(chosen) < count else ""
    return chosen, f"targets {', '.join(' + '.join(one) for one in chosen)}: spare, spread over machines{short}"


def _choose_ranks(left: Mapping[str, str], ranks: int, crowd: Mapping[str, int]) -> list[str]:
    """Workers of one machine where any has enough, as they exchange something in every layer; else of as few as can be:
    those that have most come first. `left`: the machine of each."""
    there = Counter(left.values())

    def order(id: str) -> tuple[bool, int, int, str, str]:
        machine = left[id]
        enough = there[machine] >= ranks
        return not enough, crowd[machine] if enough else 0, 0 if enough else -there[machine], machine, id

    return sorted(left, key=order)[:ranks] if ranks > 1 else [min(left, key=lambda id: (crowd[left[id]], id))]
