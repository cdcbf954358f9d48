"""Hostile messages: any message of a type, with one thing about it that should not be."""

import asyncio
import math
from dataclasses import dataclass, field
from typing import Any, get_args

import msgpack
import msgspec
from hypothesis import strategies as st

from livescale.shared.bus.calls import Reply
from livescale.shared.bus.codec import CONTENT_TYPE, ERROR_CODE, Headers, content_type, encode, fill, hole_names
from livescale.shared.bus.contract import Call, Topic
from livescale.shared.messages.message import Message
from livescale.shared.simulation.broker_state import Way
from livescale.shared.simulation.local_bus import LocalBroker
from tests.shared.messages.test_message import messages

ANSWER_SECONDS = 60.0
LARGE = {"a mebibyte": "x" * 1_000_000, "a long list": [0] * 100_000}
KNOWN = ["worker-0", "worker-1", "host-0", "gateway-0", "m", "instance-1", "scale-1", "r-1"]
ODD: list[Any] = [
    *(None, True, -1, 0, 1, 2**31, 2**53, 2**63, 2**64 - 1, -(2**63)),
    *(0.0, -1.5, 1e-300, 1e300, math.nan, math.inf, -math.inf),
    *("", "\0", "nobody", "../../etc/passwd", "a b.c>*", "\U0001f999" * 300, *LARGE, *KNOWN),
    *(b"", b"\xff" * 100, [], [[]], [-1], [None], {}, {"": {}}),
]


def fields_of(value: Any) -> list[tuple[Any, ...]]:
    """Yield the paths to every value inside a decoded message."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    paths: list[tuple[Any, ...]] = []
    for key, one in inner:
        paths += [(key,), *((key, *rest) for rest in fields_of(one))]
    return paths


def replaced(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], other) if path[1:] else other
    return copy


@st.composite
def hostile(draw: st.DrawFn, kind: type[Message], *, json: bool) -> bytes:
    """Bytes that claim to be a message: cut, of another tag, with a field of another value, or nothing of the sort."""
    parts = msgspec.to_builtins(draw(messages(kind)), builtin_types=() if json else (bytes,))
    what = draw(st.sampled_from(["field", "field", "field", "missing", "cut", "bytes", "deep", "as it is"]))
    if what == "bytes":
        return draw(st.binary(max_size=200))
    if what == "deep":
        return (b'{"more":' + b"[" * 50_000) if json else b"\x82\xa4more" + b"\x91" * 50_000
    if what == "missing":
        parts.pop(draw(st.sampled_from(sorted(parts))))
    while what == "field":
        path = draw(st.sampled_from(sorted(fields_of(parts), key=repr)))
        other = draw(st.sampled_from(ODD) | st.integers() | st.text(max_size=20))
        parts = replaced(parts, path, LARGE.get(other, other) if isinstance(other, str) else other)
        what = draw(st.sampled_from(["field", "done"]))
    data = packed(parts, json=json)
    return data[: draw(st.integers(0, len(data)))] if what == "cut" else data


def packed(value: Any, *, json: bool) -> bytes:
    if json:
        return msgspec.json.encode(value)
    try:
        return bytes(msgpack.packb(value))
    except OverflowError:
        return packed(bounded(value), json=False)


def bounded(value: Any) -> Any:
    """Return the value with integers that msgpack has: it has no larger ones."""
    if isinstance(value, dict):
        return {key: bounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [bounded(one) for one in value]
    return max(-(2**63), min(value, 2**64 - 1)) if isinstance(value, int) else value


@dataclass(frozen=True)
class Shot:
    """A hostile message on its way to a process."""

    subject: str
    data: bytes = field(repr=False)  # of up to a mebibyte
    json: bool
    answered: bool

    @property
    def headers(self) -> dict[str, str]:
        return {CONTENT_TYPE: content_type(self.json)}


@st.composite
def shots(draw: st.DrawFn, targets: list[Topic[Any] | Call[Any, Any]], ids: list[str]) -> Shot:
    """At any of these topics and calls; their holes are filled with `ids`."""
    target = draw(st.sampled_from(targets))
    subject = fill(target.pattern, {hole: draw(st.sampled_from(ids)) for hole in hole_names(target.pattern)})
    if isinstance(target, Call):
        json = draw(st.booleans())
        return Shot(subject, draw(hostile(target.request, json=json)), json, answered=True)
    kind = draw(st.sampled_from(get_args(target.type) or (target.type,)))
    return Shot(subject, draw(hostile(kind, json=target.json)), target.json, answered=False)


def shot(target: Call[Any, Any], message: Message, **holes: str) -> Shot:
    """A message that is well-formed, and hostile in what it says."""
    return Shot(fill(target.pattern, holes), encode(message, json=False), json=False, answered=True)


def fire(broker: LocalBroker, shot: Shot) -> list[Headers]:
    """Send a shot. The headers of the answer are added to the list."""
    answers: list[Headers] = []
    reply: Reply | None = (lambda body, headers: answers.append(headers)) if shot.answered else None
    broker.send(Way(None, shot.subject), shot.data, shot.headers, reply)
    return answers


async def volley(broker: LocalBroker, fired: list[Shot]) -> None:
    """Send all shots at once; every call is answered, and none by a failure."""
    answers = [fire(broker, shot) for shot in fired]
    async with asyncio.timeout(ANSWER_SECONDS):
        while not all(answer for shot, answer in zip(fired, answers, strict=True) if shot.answered):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the tasks that answer are not ours to wait for
    assert all(len(answer) <= 1 for answer in answers)
    assert "500" not in codes(answers)


def codes(answers: list[list[Headers]]) -> set[str]:
    return {headers[ERROR_CODE] for one in answers for headers in one if ERROR_CODE in headers}
