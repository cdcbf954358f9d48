"""What a transfer plan is: which node sends which blocks to which other, and in what order. Pure."""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

Policy = Literal["chains", "binomial", "tree", "fanout", "ring", "local"]
Direction = Literal["in", "out"]
Over = Literal["network", "domain", "host_link", "disk", "local"]
LinkKind = Literal["nic", "uplink", "domain", "link"]  # the last is to the host's memory


class CannotPlan(Exception):
    """No plan is possible. The message says why."""


class TransferFlow(msgspec.Struct, frozen=True, gc=False):
    """Blocks that `sender` gives `receiver` in this order, each chunk as soon as it has it.

    With `lanes` > 1 it carries only every `lanes`-th stripe of each block, from the `lane`-th on. With `steps`, one for
    each block, a node sends in the order of steps over all its flows, one block at a time.
    """

    sender: str
    receiver: str
    blocks: tuple[int, ...]
    lane: int = 0
    lanes: int = 1
    over: Over = "network"
    steps: tuple[int, ...] = ()


class TransferPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Flows that together give every target each byte that it misses exactly once.

    `tails` send nothing over a NIC that forwards: they can serve live while they load (BlitzScale 5.1). `pruned` are
    the directions of nodes that serving traffic uses and no network flow does. `pipelines` are execution pipelines
    (LambdaScale 4.3): nodes that together hold the whole model before each of them does.
    """

    policy: Policy
    flows: tuple[TransferFlow, ...]
    targets: tuple[str, ...]
    tails: tuple[str, ...]
    pruned: tuple[tuple[str, Direction], ...] = ()
    pipelines: tuple[tuple[str, ...], ...] = ()
    reasons: tuple[str, ...] = ()


def find_tails(flows: Iterable[TransferFlow], targets: Iterable[str], nics: Mapping[str, str]) -> tuple[str, ...]:
    """Return the targets whose NIC sends nothing; `nics` names the NIC of each node."""
    sending = {nics[flow.sender] for flow in flows if flow.over == "network"}
    return tuple(target for target in targets if nics[target] not in sending)
