"""The size of a message, checked by ourselves: a client that sends too much is cut off for good by the server."""

from collections.abc import Mapping

from shared.bus.contract import TooLarge

MAX_PAYLOAD_BYTES = 1 << 20

_FRAME = len("NATS/1.0\r\n") + len("\r\n")
_LINE = len(": ") + len("\r\n")


def check_size(subject: str, data: bytes, headers: Mapping[str, str], limit: int) -> None:
    """Raises TooLarge when headers and payload together exceed the server's limit."""
    size = len(data) + _FRAME + sum(len(k.encode()) + len(v.encode()) + _LINE for k, v in headers.items())
    if size > limit:
        raise TooLarge(f"{subject}: {size} bytes with headers; the bus takes {limit}")
