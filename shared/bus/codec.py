"""Messages <-> bytes. msgpack between processes; JSON for events, heartbeats and people."""

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from livescale.shared.bus.contract import BusError, M
from livescale.shared.messages.message import Message

MSGPACK = "application/msgpack"
JSON = "application/json"
CONTENT_TYPE = "Content-Type"

_to_msgpack = msgspec.msgpack.Encoder()
_to_json = msgspec.json.Encoder()


class Undecodable(BusError):
    """Bytes that are not the message they should be; the text names the field."""


def encode(message: Message, *, json: bool = False) -> bytes:
    return _to_json.encode(message) if json else _to_msgpack.encode(message)


def decode(type: type[M], data: bytes, *, json: bool = False) -> M:
    """The message of this type (or union of types, which mypy sees as Any) in `data`. Raises Undecodable."""
    decoder = _json_decoder(type) if json else _msgpack_decoder(type)
    try:
        message: M = decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Undecodable(str(error)) from None
    return message


def is_json(data: bytes, headers: Mapping[str, str]) -> bool:
    """As the header says; without one, what a person types: nothing at all, or an object."""
    declared = headers.get(CONTENT_TYPE)
    if declared is not None:
        return declared.startswith(JSON)
    return not data or data.startswith(b"{")


def content_type(json: bool) -> str:
    return JSON if json else MSGPACK


@lru_cache(maxsize=256)
def _msgpack_decoder(type: type[M]) -> msgspec.msgpack.Decoder[M]:
    return msgspec.msgpack.Decoder(type)


@lru_cache(maxsize=256)
def _json_decoder(type: type[M]) -> msgspec.json.Decoder[M]:
    return msgspec.json.Decoder(type)
