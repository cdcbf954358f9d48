"""The size of a message, checked by ourselves: a client that sends too much is cut off for good by the server."""

from livescale.shared.bus.contract import TooLarge

MAX_PAYLOAD_BYTES = 1 << 20


def check_size(subject: str, head: bytes, data: bytes, limit: int) -> None:
    """Raises TooLarge when headers and payload together exceed the server's limit."""
    size = len(head) + len(data)
    if size > limit:
        raise TooLarge(f"{subject}: {size} bytes with headers; the bus takes {limit}")
