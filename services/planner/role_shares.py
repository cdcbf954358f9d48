"""Which roles new instances of a model get, so that a share of its instances prefills. Pure."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from livescale.shared.messages.membership import Role, WorkerReport
from livescale.shared.messages.transfers import PlannedInstance


def roles_of(
    model: str,
    workers: Iterable[WorkerReport],
    planned: Iterable[PlannedInstance],
    leaving: Iterable[str],
    moving: Mapping[str, Role] = MappingProxyType({}),
) -> dict[str, Role | None]:
    """The role of each instance that is there or planned, by its id, as its worker says if it can, or as it is told to
    take one (`moving`). Instances that are `leaving` are left out."""
    reported: Mapping[str, Role | None] = {
        report.instance: report.role
        for report in workers
        if report.model == model and report.rank == 0 and report.instance is not None and report.state != "draining"
    }
    roles = {**{one.id: one.role for one in planned}, **reported}
    roles |= {id: role for id, role in moving.items() if id in roles}
    return {id: role for id, role in roles.items() if id not in set(leaving)}


def choose_roles(present: Iterable[Role | None], count: int, prefill_share: float) -> tuple[list[Role], list[str]]:
    """Choose the roles of so many new instances, and say why.

    The first of a model prefills and the second decodes; from then on a share of all that have one of these roles
    prefills.
    """
    there = list(present)
    prefill, decode = there.count("prefill"), there.count("decode")
    chosen: list[Role] = []
    for _ in range(count):
        lacks_prefill = prefill == 0 or (decode > 0 and prefill < prefill_share * (prefill + decode + 1))
        chosen.append("prefill" if lacks_prefill else "decode")
        prefill, decode = prefill + lacks_prefill, decode + (not lacks_prefill)
    here = f"{there.count('prefill')} prefill and {there.count('decode')} decode"
    return chosen, [
        f"roles {', '.join(chosen)}: of those there, {here}, and a share of {prefill_share:g} is to prefill"
    ]
