"""Workers of one pool compute alike: a request's tokens must not depend on which of them runs it."""

from collections.abc import Iterable

from shared.bus.contract import Refusal
from shared.messages.membership import Join, Member


def check_kernels(join: Join, members: Iterable[Member]) -> None:
    """Raises Refusal for a worker whose kernels are not those of another that is alive."""
    for member in members:
        others = member.id != join.id and member.lease == "alive" and member.kernels not in (None, join.kernels)
        if join.kernels is not None and others:
            raise Refusal(
                409,
                f"{join.id} computes with the kernels {join.kernels}, {member.id} with {member.kernels}: their bits "
                "differ. Give all workers --kernels torch, or install the same ones for all of them",
            )
