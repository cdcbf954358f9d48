"""The base of every message on the bus, and the bounds of what its fields may say."""

from typing import Annotated

import msgspec
from msgspec import Meta

# A message is checked when it is decoded, so a value out of bounds is refused by name before anyone sees it. Every
# number is bounded: JSON brings integers of any size and msgpack takes 64 bits, and "not a number" decides nothing.
LARGEST = 2**53 - 1
Name = Annotated[str, Meta(min_length=1, max_length=256)]  # becomes part of subjects, which the server wants short
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Positive = Annotated[int, Meta(ge=1, le=LARGEST)]
Amount = Annotated[float, Meta(ge=0, le=1e15)]  # seconds, moments since the epoch, rates
TraceParent = Annotated[str, Meta(max_length=64)]  # W3C; names the span of a trace that something belongs to
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Message(msgspec.Struct, frozen=True, tag=True):
    """A frozen record that carries its class name in the field `type`."""
