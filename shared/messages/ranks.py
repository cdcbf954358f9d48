"""Instances of several ranks (tensor parallelism): how they meet, and the steps that they take together.

The worker of rank 0 leads: requests are its own, and so is the choice of what runs in each step. It tells the others of
every step; what they then exchange goes through their process group.
"""

from typing import Annotated

from msgspec import Meta

from livescale.shared.messages.membership import Address
from livescale.shared.messages.message import Count, Message, Name, Positive
from livescale.shared.messages.transfers import Indexes, Node, Secret, Ticket

Port = Annotated[int, Meta(ge=0, le=65_535)]


class AskMeeting(Message, frozen=True, kw_only=True):
    """A rank -> the one that leads: where does this instance meet? Refused where it is not (any more) led there.

    `address`: where `rank` is reached by those that give it KV, or take some. `blocks`: those that are laid out there.
    """

    instance: Name
    rank: Count = 0
    address: Address = b""
    blocks: Indexes = []


class Meeting(Message, frozen=True, kw_only=True):
    """Where the ranks of an instance find each other."""

    address: Name
    port: Port


class RankStep(Message, frozen=True, kw_only=True):
    """Rank 0 -> the others: run this batch, or one `layer` of it, or its blocks `first` to before `stop`. Steps count
    from 1, with no gap.

    Activations are not in it: the ranks get them from rank 0 as they run it.
    """

    instance: Name
    step: Positive
    batch: bytes
    layer: Count | None = None
    first: Count | None = None
    stop: Count = 0


class RankGive(Message, frozen=True, kw_only=True):
    """Rank 0 of a target -> the others, one of its steps: a request is a source's from now on. Send `to` its rank that
    has your shard the KV of the first `layers` layers in `blocks` blocks, over the channel of this ticket."""

    instance: Name
    step: Positive
    first_block: Count
    blocks: Positive
    layers: Positive
    to: Node
    ticket: Ticket
    secret: Secret = b""


class RankTake(Message, frozen=True, kw_only=True):
    """Rank 0 of a source -> the others: receive KV of a request. Answered once it is here, refused where it is lost.

    It was wanted after the step `after`, and is laid down with a step that imports it.
    """

    instance: Name
    request_id: Name
    sender: Node
    ticket: Ticket
    size_bytes: Count
    after: Count
    secret: Secret = b""


class RankKeep(Message, frozen=True, kw_only=True):
    """Rank 0 of a source -> the others, one of its steps: of what was to be received before only the KV of these
    requests is still wanted."""

    instance: Name
    step: Positive
    requests: list[Name]


Told = RankStep | RankGive | RankKeep
