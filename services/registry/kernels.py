"""Workers of one pool compute alike: a request's tokens must not depend on which of them runs it."""

from collections.abc import Iterable

from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import Join, Member

COMPILED = ("amx", "avx512_bf16", "portable")


def check_kernels(join: Join, members: Iterable[Member]) -> None:
    """Raises Refusal for a worker whose bits are not those of another that is alive."""
    for member in members:
        others = member.id != join.id and member.lease == "alive" and member.kernels not in (None, join.kernels)
        if join.kernels is not None and member.kernels is not None and others:
            raise Refusal(
                409,
                f"{join.id} computes with the kernels {join.kernels}, {member.id} with {member.kernels}: their bits "
                f"differ. {remedy(join.kernels, member.kernels)}",
            )


def remedy(own: str, others: str) -> str:
    """The setting with which a worker whose bits are `own` would have those of the `others`."""
    variant, wanted = variant_of(own), variant_of(others)
    if wanted not in COMPILED:
        return "Give all workers --kernels portable: every CPU has them where there was a C compiler at installation"
    if variant == wanted:
        return "These are other kernels of the same name: install the same release for all workers"
    if wanted == "amx":
        return "Give this worker --kernels amx-emulated, which has the bits of AMX on every CPU"
    if wanted == "portable":
        return "Give this worker --kernels portable"
    return f"Give this worker --kernels {wanted}; where its CPU lacks that, give all workers --kernels portable"


def variant_of(kernels: str) -> str:
    """Whose kernels these are: what comes before the digest, and torch's version."""
    return kernels.partition("-")[0]
