"""What gateways keep of responses that clients may ask for again."""

from livescale.shared.messages.message import Amount, Count, Message, Name

RESPONSES = "responses"  # the bucket in which they are


class KeptResponse(Message, frozen=True, kw_only=True):
    """A response of /v1/responses: the object that its client gets, and the messages of its conversation, both as JSON.
    The first `input_messages` of these were there before the answer.

    One that is in progress after its `deadline`, in seconds since the epoch, was lost with its gateway.
    """

    id: Name
    response: str
    conversation: str
    input_messages: Count = 0
    deadline: Amount
