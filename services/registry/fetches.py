"""A copy of a model on its way to a host: which process sends it, and what both sides are commanded. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from livescale.shared.messages.membership import Member
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import FetchModel
from livescale.shared.messages.transfers import Inflow, Node, Outflow, Send
from livescale.shared.transfer.chunks import TICKETS, chunk_bytes_for, first_ticket

CHUNK_BYTES = chunk_bytes_for(0.0)


class CopyTickets:
    """Gives each flow a ticket of its own. `wall` is the time at the start, in seconds since the epoch."""

    def __init__(self, wall: float) -> None:
        # Half the range away from the tickets that the planner begins with.
        self._last = (first_ticket(wall) + TICKETS // 2) % TICKETS

    def next(self) -> int:
        self._last = (self._last + 1) % TICKETS
        return self._last


@dataclass
class CopyFetch:
    """The transfer of one version to one host.

    `source` sends it along the flow `ticket`. `lost` holds the ids of senders that failed or refused.
    """

    plan_id: str
    spec: ModelSpec
    manifest: Manifest
    host: Member
    secret: bytes = field(repr=False)
    ticket: int = 0
    source: Member | None = None
    lost: set[str] = field(default_factory=set)
    is_asking: bool = False

    def ask(self, source: Member | None, ticket: int) -> FetchModel:
        """The command for the host: receive from `source`, or without one read from disk what is missing."""
        self.source, self.ticket = source, ticket
        return FetchModel(
            plan_id=self.plan_id,
            spec=self.spec,
            manifest=self.manifest,
            inflows=[] if source is None else [Inflow(ticket=ticket, upstream=_node(source))],
            chunk_bytes=CHUNK_BYTES,
            epoch=self.host.epoch,
            secret=self.secret,
        )

    def send(self, source: Member) -> Send:
        return Send(
            plan_id=self.plan_id,
            version=self.manifest.version,
            outflows=[Outflow(ticket=self.ticket, downstream=_node(self.host))],
            chunk_bytes=CHUNK_BYTES,
            epoch=source.epoch,
            secret=self.secret,
        )

    def is_over(self, members: Mapping[str, Member]) -> bool:
        """Whether the host has died or joined again since the transfer began."""
        return self.host.id not in members or members[self.host.id].epoch != self.host.epoch

    def lose(self) -> bool:
        """Note that the source is lost. Returns whether the next one has still to be asked."""
        if self.source is not None:
            self.lost.add(self.source.id)
        return not self.is_asking


def _node(member: Member) -> Node:
    return Node(id=member.id, place="host" if member.service == "host" else "worker", address=member.address or b"")
