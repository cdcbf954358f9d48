"""Which instances are left to prefill a request, and which one decodes what another prefills. Pure.

A role is a preference: while no instance that prefills is open, the others do.
"""

from collections.abc import Iterable, Sequence

from livescale.services.router.instances import InstanceView
from livescale.shared.messages.requests import Submit


def relieve_helpers(with_room: Sequence[InstanceView]) -> list[InstanceView]:
    """While an instance that still loads has room, leave out the instances that help it: they take what they can from
    its queue, and it computes the first layers meanwhile (BlitzScale 5.2)."""
    live = {one.worker for one in with_room if one.state == "live"}
    return [one for one in with_room if not one.helping & live]


def may_prefill(with_room: Sequence[InstanceView], candidates: Iterable[InstanceView]) -> list[InstanceView]:
    """Those with room that prefill. An instance that only decodes is left out, unless all open candidates do that, or
    it is live: while it loads it can begin prompts, and decode nothing."""
    if all(_only_decodes(one) for one in candidates):
        return list(with_room)
    return [one for one in with_room if not _only_decodes(one)]


def _only_decodes(instance: InstanceView) -> bool:
    return instance.role == "decode" and instance.state != "live"


def choose_decode(
    request: Submit, prefill: InstanceView, candidates: Iterable[InstanceView], last: str | None
) -> tuple[str | None, str]:
    """Choose the worker that decodes what an instance of the role prefill begins, and say why.

    It is None where the instance decodes itself. Instances that decode come first, those that do everything after them.
    `last` had the conversation's last request, and may have most of the KV. Otherwise instances on the same machine
    come first, and of them the one with the most free blocks; what is reserved, and what this router has promised to
    others, is not free.
    """
    if prefill.role != "prefill" or prefill.state != "serving":
        return None, f"{prefill.worker} decodes itself"
    others = [one for one in candidates if one.worker != prefill.worker and one.state == "serving"]
    with_room = [one for one in others if one.role != "prefill" and one.has_room_to_decode(request)]
    if not with_room:
        return None, f"{prefill.worker} decodes itself: of {len(others)} others none has room"
    if any(one.worker == last and one.role == "decode" for one in with_room):
        return last, f"{last} decodes: it has the request's context"
    best = min(
        with_room,
        key=lambda one: (one.role != "decode", one.host != prefill.host, -one.free_blocks, one.worker),
    )
    where = "here" if best.host == prefill.host else "there"
    return best.worker, f"{best.worker} decodes: it has most free blocks of those {where}"
