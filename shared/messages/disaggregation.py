"""Roles, and prefill and decode at different workers: KV goes from the one that prefills to the one that decodes.

Control goes over the bus. KV goes over a channel of the link that only these two know: its number is made of the
ticket, its secret is the reservation's.
"""

from livescale.shared.messages.membership import Address, Role
from livescale.shared.messages.message import Amount, Count, Message, Name, TokenId
from livescale.shared.messages.requests import Submit, TokenLogprobs
from livescale.shared.messages.transfers import Node, Secret, Ticket


class Reserve(Message, frozen=True, kw_only=True):
    """Prefill worker -> decode worker, as the first step of a request begins, or as it moves: keep KV blocks for it.

    `prefill` names the sender and where its link is reached, `ticket` the transfer. KV comes of all positions that
    `request` has. The same command again has the same answer. Refused with 429 where there is no room now, with 409
    where the version is not served.
    """

    prefill: Node
    ticket: Ticket
    secret: Secret
    request: Submit
    version: Name


class Reserved(Message, frozen=True, kw_only=True):
    """The blocks are kept. Positions before `cached` are in the decode worker's prefix cache, and need not be sent."""

    address: Address
    cached: Count = 0


class TakeOver(Message, frozen=True, kw_only=True):
    """Prefill worker -> decode worker: all KV was sent; go on with the request after `generated`, all of its tokens.

    Once this is answered the request is the decode worker's, which waits for KV that is still on its way, and computes
    that of tokens which were generated meanwhile. The same command again has the same answer. Refused with 409 where
    the request stays with the prefill worker.
    `logprobs` are those of the last of these tokens, `prompt_logprobs` those of the prompt. `waited`: seconds since it
    was admitted; `silent`: seconds since its last token.
    """

    prefill: Name
    ticket: Ticket
    request_id: Name
    generated: list[TokenId]
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []
    waited: Amount = 0.0
    silent: Amount = 0.0


class ReleaseKv(Message, frozen=True, kw_only=True):
    """Prefill worker -> decode worker: the reservation is void, for this reason. Repeated until it is answered.

    Refused with 409 where the request was taken over already: then it is no longer the prefill worker's. One that has
    `ended` is cancelled even then.
    """

    prefill: Name
    ticket: Ticket
    request_id: Name
    reason: str
    ended: bool = False


class HandOver(Message, frozen=True, kw_only=True):
    """Router -> worker: have the worker `decode` go on with this request, which is yours and may be decoded meanwhile.

    Answered once the request is the other worker's. Refused with 409 where it cannot move, with 429 where it stays for
    now: as the other worker has no room, or died.
    """

    request_id: Name
    decode: Name


class ChangeRole(Message, frozen=True, kw_only=True):
    """Planner -> worker: your instance has this role from now on. What runs goes on as it is; the router follows your
    reports. Refused with 409 for another instance or epoch."""

    instance: Name
    role: Role
    epoch: Count
