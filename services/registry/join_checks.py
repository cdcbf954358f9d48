"""Which processes may join: one for each place, and workers whose kernels compute the same bits. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import Join, Member
from livescale.shared.topology.topology import Topology

COMPILED = ("amx", "avx512_bf16", "portable")


@dataclass(frozen=True)
class JoinRules:
    """What a process must satisfy to join. Without a topology it may be at any place that nobody has."""

    topology: Topology | None = None

    def check(self, join: Join, members: Sequence[Member]) -> None:
        """Raises Refusal: 422 for a place that the topology lacks, 409 for what does not go with the other members."""
        check_place(join, members, self.topology)
        check_kernels(join, members)


ANY_PLACE = JoinRules()


def check_place(join: Join, members: Iterable[Member], topology: Topology | None) -> None:
    """Raises Refusal 422 for a place that the topology lacks, 409 for one that another member of the service has."""
    if join.service not in ("worker", "host"):
        return
    if topology is not None:
        _refuse_unknown(join, topology)
    if join.place is None:
        return
    for member in members:
        is_there = member.place == join.place and member.service == join.service
        if is_there and member.id != join.id and member.lease == "alive":
            raise Refusal(409, f"place {join.place!r} is taken by {member.id}: choose another with --place", 1000)


def _refuse_unknown(join: Join, topology: Topology) -> None:
    kind = "GPU" if join.service == "worker" else "host"
    known = [gpu.id for gpu in topology.gpus] if join.service == "worker" else [host.id for host in topology.hosts]
    if join.place not in known:
        said = f"{join.place!r} is not a {kind} of topology {topology.name}" if join.place else "it names no place"
        raise Refusal(422, f"{join.id}: {said}; give --place, a {kind} such as {', '.join(known[:3]) or 'none'}")


def check_kernels(join: Join, members: Iterable[Member]) -> None:
    """Raises Refusal 409 for a worker that computes other bits than a worker that is alive.

    A request's tokens must not depend on which worker of the pool runs it.
    """
    if join.kernels is None:
        return
    for member in members:
        if member.kernels is None or member.kernels == join.kernels:
            continue
        if member.id != join.id and member.lease == "alive":
            raise Refusal(
                409,
                f"{join.id} computes with the kernels {join.kernels}, {member.id} with {member.kernels}, whose results "
                f"differ in bits. {remedy(join.kernels, member.kernels)}",
            )


def remedy(own: str, others: str) -> str:
    """What to set so that a worker with the kernels `own` computes the same bits as the `others`."""
    variant, wanted = variant_of(own), variant_of(others)
    if wanted not in COMPILED:
        return "Give all workers --kernels portable, which every CPU has if a C compiler was there at installation"
    if variant == wanted:
        return "The two have different kernels of the same name: install the same release for all workers"
    if wanted == "amx":
        return "Give this worker --kernels amx-emulated, which has the bits of AMX on every CPU"
    if wanted == "portable":
        return "Give this worker --kernels portable"
    return f"Give this worker --kernels {wanted}; if its CPU does not have them, give all workers --kernels portable"


def variant_of(kernels: str) -> str:
    """The name of these kernels, without the digest and the version of torch behind it."""
    return kernels.partition("-")[0]
