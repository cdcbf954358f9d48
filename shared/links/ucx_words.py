"""What the two ends of a UCX channel say to one another about it, beside its messages."""

import struct

from ucxx.types import Tag

CONTROL = Tag(0x6C697665_7363616C)
# What a peer says on CONTROL, the hash of its address, on which channel; then the number of its endpoint, or its proof.
WORD = struct.Struct("8sQQQ")
HELLO, GOODBYE = b"hello   ", b"goodbye "
# Over an endpoint that was kept a process asks whether the other end has it too, for this channel or for none.
AGAIN, WELCOME, REFUSED = b"again   ", b"welcome ", b"refused "
DROPPED = b"dropped "  # the endpoint with this number is closed, which UCX does not tell
