"""One message of the bus as a line. Decoded by the `msgpack` package, not by what encoded it."""

import json

import msgpack

LONG_LIST = 6
SHOWN_ITEMS = 3


def describe(data: bytes, full: bool) -> str:
    """The size, the message's type and its fields."""
    if not data:
        return "0 B"
    try:
        content = json.loads(data) if data[:1] in b"{[" else msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, msgpack.UnpackException):
        return f"{len(data)} B, neither JSON nor msgpack"
    if not isinstance(content, dict):
        return f"{len(data)} B {content}"
    kind = content.pop("type", "?")
    fields = " ".join(f"{name}={plain(value, full)}" for name, value in content.items() if value is not None)
    return f"{len(data)} B {kind} {fields}".rstrip()


def plain(value: object, full: bool) -> str:
    match value:
        case bytes():
            return f"<{len(value)} bytes>"
        case dict():
            items = (f"{name}={plain(each, full)}" for name, each in value.items() if name != "type")
            return "{" + " ".join(items) + "}"
        case list() if len(value) > LONG_LIST and not full:
            return "[" + " ".join(plain(each, full) for each in value[:SHOWN_ITEMS]) + f" ... {len(value)} items]"
        case list():
            return "[" + " ".join(plain(each, full) for each in value) + "]"
        case float():
            return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.3f}"
        case _:
            return str(value)
