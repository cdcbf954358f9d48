"""Live scaling: a worker that serves takes over requests of one that is still loading, with the layers done of them.

The target holds the queue; the source pulls. Control goes over the bus, activation and KV over a channel of the link
that only these two know: its number is made of the pull's ticket, its secret is the pull's.
"""

from livescale.shared.messages.membership import Address
from livescale.shared.messages.message import Amount, Count, Message, Name, Positive
from livescale.shared.messages.requests import Submit
from livescale.shared.messages.transfers import Node, Secret, Ticket


class Help(Message, frozen=True, kw_only=True):
    """Planner -> source: pull requests from these targets, which load for this plan the model that you serve.

    When it is told again for the same plan, the list replaces the one before; an empty list ends the help.
    """

    plan_id: Name
    model: Name
    version: Name
    targets: list[Node]
    epoch: Count


class Pull(Message, frozen=True, kw_only=True):
    """Source -> target: I have nothing to prefill, give me your earliest requests.

    The source takes the earliest request that it may have, and those after it that it could run together: at most
    `requests`, with `rows` rows in all. `ticket` names the hand-off of the first one; those after it have the next
    tickets. `secret` authenticates both ends of the hand-offs. A KV block of the source has `block_tokens` tokens.
    `waits`: the answer may come later, once there is a request; otherwise the target answers at once that it has none.
    `ranks` are those of the source's instance that the source leads.
    """

    worker: Name
    address: Address
    version: Name
    ticket: Ticket
    block_tokens: Positive
    secret: Secret = b""
    requests: Positive = 1
    rows: Count = 0
    waits: bool = True
    ranks: list[Node] = []

    @property
    def source(self) -> Node:
        """The worker that pulls, as the other end of the hand-offs."""
        return Node(id=self.worker, place="worker", address=self.address)


class Withdraw(Message, frozen=True, kw_only=True):
    """Source -> target: my pull is void, I found something to do."""

    worker: Name


class Task(Message, frozen=True, kw_only=True):
    """A request on its way to a source. `layers` of its layers are done, for all tokens it has.

    With any, their activation and KV follow over the link; so many bytes each. `waited`: seconds since it was admitted.
    `filled`: positions of which the source has all KV, from block `first_block` on.
    """

    request: Submit
    layers: Count
    activation_bytes: Count = 0
    kv_bytes: Count = 0
    waited: Amount = 0.0
    filled: Count = 0
    first_block: Count = 0


class Pulled(Message, frozen=True, kw_only=True):
    """Target -> source: tasks, each a hand-off of its own, or none for now; whether `more` wait there; or that it needs
    no help any more (`over`). `ranks`: those that the target leads, each of which sends its part of the KV."""

    tasks: list[Task] = []
    more: bool = False
    over: bool = False
    ranks: list[Node] = []


class Took(Message, frozen=True, kw_only=True):
    """Source -> target: the request of this ticket is mine; or it is not, and why (`declined`).

    Refused with 409 where the target did not wait, or the request has ended: then it is the source's no more.
    """

    worker: Name
    ticket: Ticket
    request_id: Name
    declined: str | None = None


class RequestsMoved(Message, frozen=True, kw_only=True):
    """Previous owner -> router, before it answers Took: these requests are at `worker` now, and not at `previous`.

    So many `layers` of each were run at the previous owner. The owner that gives a request away tells the router,
    as a new owner might die before it did, and then no process would miss the request. Where both are the same worker,
    it keeps requests that another one was to decode.
    """

    worker: Name
    previous: Name
    request_ids: list[Name]
    layers: Count = 0
