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
    """A rank -> the leading one: where does this instance meet? Refused where the worker asked does not lead it.

    `address`: where `rank` is reached by workers that give it KV or take some. `blocks`: those that it has laid out.
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
    """Rank 0 -> the others: run this batch, or one `layer` of it, or its blocks `first` to `stop` - 1.

    Steps count from 1, without gaps. Activations are not in it: the ranks get them from rank 0 as they run it.
    """

    instance: Name
    step: Positive
    batch: bytes
    layer: Count | None = None
    first: Count | None = None
    stop: Count = 0


class RankGive(Message, frozen=True, kw_only=True):
    """Rank 0 of a target -> the others, as one of its steps: a request belongs to a source from now on.

    Send the KV of its first `layers` layers, in `blocks` blocks, over the channel of this ticket. The node `to` is the
    source's rank with the same shard.
    """

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

    The KV was asked for after the step `after`; a later step imports it.
    """

    instance: Name
    request_id: Name
    sender: Node
    ticket: Ticket
    size_bytes: Count
    after: Count
    secret: Secret = b""


class RankKeep(Message, frozen=True, kw_only=True):
    """Rank 0 of a source -> the others, as one of its steps: of all KV that was to be received, only that of these
    requests is still wanted."""

    instance: Name
    step: Positive
    requests: list[Name]


class RankAdapter(Message, frozen=True, kw_only=True):
    """Rank 0 -> the others: have this adapter in the engine. Answered once it is, refused where it does not come.

    It was asked for after the step `after`.
    """

    instance: Name
    version: Name
    after: Count


class RankForget(Message, frozen=True, kw_only=True):
    """Rank 0 -> the others, as one of its steps: no later step uses this adapter, until it is asked for again."""

    instance: Name
    step: Positive
    version: Name


Told = RankStep | RankGive | RankKeep | RankForget
