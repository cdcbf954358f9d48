"""What gateways keep of responses that clients may ask for again."""

from livescale.shared.messages.message import Amount, Message, Name

RESPONSES = "responses"  # the bucket in which they are


class KeptResponse(Message, frozen=True, kw_only=True):
    """A response of /v1/responses: the object that its client gets, and the messages of its conversation, both as JSON.

    One that is in progress after its `deadline`, in seconds since the epoch, was lost with its gateway.
    """

    id: Name
    response: str
    conversation: str
    deadline: Amount
