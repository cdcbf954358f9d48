"""Subjects, messages and headers as they are on the bus: a pattern's holes are filled and read back; messages are
msgpack between processes, and JSON for events, heartbeats and people. Pure.

Headers travel beside a message and tell deadline, epoch, request id and trace; on the way back they tell a refusal's
code. The size of both is checked before they are sent, as the server cuts off a client that sends too much.
"""

import re
import zlib
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from livescale.shared.bus.contract import BusError, Context, M, Received, Refusal, TooLarge, Topic
from livescale.shared.messages.message import Message

HOLE = re.compile(r"\{(\w+)\}")

MSGPACK = "application/msgpack"
JSON = "application/json"
CONTENT_TYPE = "Content-Type"
CONTENT_ENCODING = "Content-Encoding"
DEFLATE = "deflate"

_to_msgpack = msgspec.msgpack.Encoder()
_to_json = msgspec.json.Encoder()

DEADLINE = "Deadline"
TIMEOUT = "Timeout-Ms"
EPOCH = "Epoch"
REQUEST_ID = "X-Request-Id"
TRACEPARENT = "traceparent"
ERROR = "Nats-Service-Error"
ERROR_CODE = "Nats-Service-Error-Code"
RETRY = "Retry-After-Ms"

WHOLE = re.compile(r"-?[0-9]{1,15}")  # milliseconds and epochs; longer ones would overflow clocks
CODE = re.compile(r"[0-9]{1,9}")
LONGEST_SHOWN = 32

STATUS = "Status"  # what a server answers by itself, in the place of headers

VERSION = "NATS/1.0"
LINE_END = "\r\n"
NEWLINES = str.maketrans("\r\n", "  ")

Headers = dict[str, str]

MAX_PAYLOAD_BYTES = 1 << 20
MAX_INFLATED_BYTES = 64 << 20  # of an answer that came compressed
FASTEST = 1  # of zlib's levels
FIRST_BYTE_OF_MAPS = 0x80  # or more, in msgpack


@lru_cache(maxsize=512)
def hole_names(pattern: str) -> tuple[str, ...]:
    return tuple(HOLE.findall(pattern))


def fill(pattern: str, holes: Mapping[str, str]) -> str:
    """The subject to send to. Raises ValueError for a hole that is missing, empty or unknown."""
    return _filled(pattern, tuple(holes.items()))


def fill_wildcards(pattern: str, holes: Mapping[str, str]) -> str:
    """The subject to listen on: a hole that is left out matches anything. Raises ValueError for an unknown hole."""
    unknown = sorted(set(holes) - set(hole_names(pattern)))
    if unknown:
        raise ValueError(f"subject {pattern} has no {', '.join(unknown)}")
    return HOLE.sub(lambda match: _token(holes[match[1]]) if match[1] in holes else "*", pattern)


@lru_cache(maxsize=4096)
def holes_of(pattern: str, subject: str) -> Mapping[str, str]:
    """The values of the pattern's holes in a subject that matches it."""
    pairs = zip(pattern.split("."), subject.split("."), strict=False)
    return MappingProxyType({part[1:-1]: unquote(token) for part, token in pairs if part.startswith("{")})


@lru_cache(maxsize=65536)
def matches(wanted: str, subject: str) -> bool:
    """Whether a subscription to `wanted` (with `*` and a trailing `>`) gets `subject`."""
    parts, tokens = wanted.split("."), subject.split(".")
    if parts[-1] == ">":
        parts = parts[:-1]
        if len(tokens) <= len(parts):
            return False
        tokens = tokens[: len(parts)]
    return len(parts) == len(tokens) and all(p in ("*", t) for p, t in zip(parts, tokens, strict=True))


def bucket_name(namespace: str, name: str = "") -> str:
    """The name of a system's bucket of this name on the server; the one without is for its state."""
    return f"livescale-{namespace}-{name}" if name else f"livescale-{namespace}"


@lru_cache(maxsize=4096)
def _filled(pattern: str, values: tuple[tuple[str, str], ...]) -> str:
    holes = dict(values)
    missing = [name for name in hole_names(pattern) if not holes.get(name)]
    if missing:
        raise ValueError(f"subject {pattern} needs {', '.join(missing)}")
    return fill_wildcards(pattern, holes)


def _token(value: str) -> str:
    # Model names may hold dots and slashes, which would split the subject.
    return quote(value, safe="").replace(".", "%2E")


class Undecodable(BusError):
    """Bytes that are not the message they should be; the text names the field."""


class Carried(bytes):
    """The bytes of a message that was decoded already, which readers in one event loop share. `received`: as readers of
    its `topic` get it."""

    topic: Topic[Any]
    received: Received[Any]

    @classmethod
    def of(cls, data: bytes, topic: Topic[M], received: Received[M]) -> "Carried":
        carried = cls(data)
        carried.topic, carried.received = topic, received
        return carried


def encode(message: Message, *, json: bool = False) -> bytes:
    return _to_json.encode(message) if json else _to_msgpack.encode(message)


def decode(type: type[M], data: bytes, *, json: bool = False) -> M:
    """The message of this type (or union of types, which mypy sees as Any) in `data`. Raises Undecodable."""
    if isinstance(data, Carried) and isinstance(data.received.message, type):
        return data.received.message
    decoder = _json_decoder(type) if json else _msgpack_decoder(type)
    try:
        message: M = decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Undecodable(str(error)) from None
    return message


def is_json(data: bytes, headers: Mapping[str, str]) -> bool:
    """Whether `data` is JSON: as its header says, or, without one, where it is text as people type it. A message in
    msgpack is a map, whose first byte is not ASCII."""
    declared = headers.get(CONTENT_TYPE)
    if declared is not None:
        return declared.startswith(JSON)
    return not data or data[0] < FIRST_BYTE_OF_MAPS


def content_type(json: bool) -> str:
    return JSON if json else MSGPACK


def deflate(body: bytes) -> bytes:
    """Compress an answer, as what is told of a thousand workers is too large for the bus, and repeats itself."""
    return zlib.compress(body, FASTEST)


def inflate(data: bytes, headers: Mapping[str, str]) -> bytes:
    """The answer as it was encoded, where its headers say that it is compressed. Raises Undecodable."""
    encoding = headers.get(CONTENT_ENCODING)
    if encoding is None:
        return data
    if encoding != DEFLATE:
        raise Undecodable(f"{CONTENT_ENCODING}: {encoding[:LONGEST_SHOWN]!r} is not {DEFLATE}")
    inflating = zlib.decompressobj()
    try:
        body = inflating.decompress(data, MAX_INFLATED_BYTES)
    except zlib.error as error:
        raise Undecodable(f"{DEFLATE}: {error}") from None
    if not inflating.eof:
        raise Undecodable(f"{DEFLATE}: it was cut off, or is larger than {MAX_INFLATED_BYTES} bytes")
    return body


@lru_cache(maxsize=256)
def _msgpack_decoder(type: type[M]) -> msgspec.msgpack.Decoder[M]:
    return msgspec.msgpack.Decoder(type)


@lru_cache(maxsize=256)
def _json_decoder(type: type[M]) -> msgspec.json.Decoder[M]:
    return msgspec.json.Decoder(type)


def pack(headers: Mapping[str, str]) -> bytes:
    """The bytes of headers as they stand in front of a payload. Line ends in values become blanks."""
    lines = [f"{name}: {value.translate(NEWLINES).strip()}{LINE_END}" for name, value in headers.items()]
    return f"{VERSION}{LINE_END}{''.join(lines)}{LINE_END}".encode(errors="replace")


# Headers of what is published, and their bytes, by whether it is JSON.
TOPIC_HEADERS = {json: {CONTENT_TYPE: content_type(json)} for json in (False, True)}
HEADS = {json: pack(headers) for json, headers in TOPIC_HEADERS.items()}


def unpack(head: bytes) -> Headers:
    """The headers in `head`. Lines that are no header are left out, bytes that are no text are replaced."""
    first, *lines = head.decode(errors="replace").split(LINE_END)
    status = first[len(VERSION) :].split(maxsplit=1)
    headers = {STATUS: status[0]} if status else {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip()] = value.strip()
    return headers


def context_headers(context: Context, timeout: float) -> Headers:
    headers = {TIMEOUT: str(max(1, round(timeout * 1000)))}
    if context.deadline is not None:
        headers[DEADLINE] = str(round(context.deadline * 1000))
    if context.epoch is not None:
        headers[EPOCH] = str(context.epoch)
    if context.request_id is not None:
        headers[REQUEST_ID] = context.request_id
    if context.traceparent is not None:
        headers[TRACEPARENT] = context.traceparent
    return headers


def read_context(headers: Mapping[str, str], wall: float) -> Context:
    """The caller's context. Its deadline is `Deadline` or now + `Timeout-Ms`, the earlier one. Raises Refusal 400."""
    deadline, timeout = _integer(headers, DEADLINE), _integer(headers, TIMEOUT)
    last = None if deadline is None else deadline / 1000
    if timeout is not None:
        within = wall + timeout / 1000
        last = within if last is None else min(last, within)
    return Context(
        deadline=last,
        epoch=_integer(headers, EPOCH),
        request_id=headers.get(REQUEST_ID),
        traceparent=headers.get(TRACEPARENT),
    )


def refusal_headers(refusal: Refusal) -> Headers:
    headers = {ERROR: refusal.message, ERROR_CODE: str(refusal.code)}
    if refusal.retry_after_ms is not None:
        headers[RETRY] = str(refusal.retry_after_ms)
    return headers


def read_refusal(headers: Mapping[str, str]) -> Refusal | None:
    code = headers.get(ERROR_CODE)
    if code is None:
        return None
    retry = headers.get(RETRY, "")
    return Refusal(
        int(code) if CODE.fullmatch(code) else 500,
        headers.get(ERROR, "refused without a reason"),
        int(retry) if CODE.fullmatch(retry) else None,
    )


def _integer(headers: Mapping[str, str], name: str) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    if not WHOLE.fullmatch(value):
        raise Refusal(400, f"header {name} is not a whole number: {value[:LONGEST_SHOWN]!r}")
    return int(value)


def check_size(subject: str, head: bytes, data: bytes, limit: int) -> None:
    """Raises TooLarge when headers and payload together exceed the server's limit."""
    size = len(head) + len(data)
    if size > limit:
        raise TooLarge(f"{subject}: {size} bytes with headers; the bus takes {limit}")
