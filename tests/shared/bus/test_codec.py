"""Subjects, headers and bytes: holes are filled and read back, each header survives, and no text in a header becomes
another header."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.shared.bus.codec import (
    Undecodable,
    deflate,
    encode,
    fill,
    fill_wildcards,
    holes_of,
    inflate,
    is_json,
    matches,
    pack,
    unpack,
)
from livescale.shared.messages.message import Message
from livescale.shared.messages.registry import AskModels, Named
from livescale.shared.messages.requests import Replay

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,20}", fullmatch=True)
LINES = st.text(st.characters(blacklist_categories=("C", "Z")), max_size=50)


@given(st.dictionaries(NAMES, LINES, max_size=5))
def test_what_is_packed_is_unpacked(headers: dict[str, str]) -> None:
    assert unpack(pack(headers)) == headers


@given(st.text(max_size=100))
def test_a_value_stays_within_its_header(value: str) -> None:
    assert unpack(pack({"Error": value, "Code": "400"})).keys() == {"Error", "Code"}


def test_a_compressed_answer_is_read_as_it_was() -> None:
    body = encode(Named(model="m" * 5000))
    assert len(deflate(body)) < 100
    assert inflate(deflate(body), {"Content-Encoding": "deflate"}) == body
    assert inflate(body, {}) == body


@pytest.mark.parametrize(
    ("data", "encoding", "says"),
    [
        (deflate(b"abc" * 100)[:-5], "deflate", "cut off"),
        (deflate(bytes((64 << 20) + 1)), "deflate", "larger than 67108864 bytes"),
        (b"abc", "deflate", "deflate: "),
        (b"abc", "br", "'br' is not deflate"),
    ],
)
def test_what_is_no_compressed_answer_is_refused(data: bytes, encoding: str, says: str) -> None:
    with pytest.raises(Undecodable, match=says):
        inflate(data, {"Content-Encoding": encoding})


@pytest.mark.parametrize(
    ("head", "headers"),
    [
        (b"NATS/1.0\r\n\r\n", {}),
        (b"NATS/1.0 503\r\n\r\n", {"Status": "503"}),
        (b"NATS/1.0 503 No Responders\r\nA: b\r\n\r\n", {"Status": "503", "A": "b"}),
        (b"NATS/1.0\r\nA:b\r\nno header\r\nC:  d:e \r\n\r\n", {"A": "b", "C": "d:e"}),
        (b"NATS/1.0\r\nA: \xff\r\n\r\n", {"A": "\ufffd"}),
        (b"", {}),
    ],
)
def test_what_servers_and_strangers_send_is_read(head: bytes, headers: dict[str, str]) -> None:
    assert unpack(head) == headers


@given(st.binary(max_size=200))
def test_any_bytes_are_read(head: bytes) -> None:
    unpack(head)


@pytest.mark.parametrize("typed", [b"", b"{}", b'{"model": "m"}', b"hello", b'"m"', b"[1]", b" {}"])
def test_what_people_type_is_read_as_json(typed: bytes) -> None:
    assert is_json(typed, {})
    assert not is_json(typed, {"Content-Type": "application/msgpack"})


@pytest.mark.parametrize("message", [Named(model="m"), AskModels(), Replay(request_id="r", index=3, gateway="g")])
def test_no_message_in_msgpack_is_taken_for_json(message: Message) -> None:
    assert not is_json(encode(message), {})
    assert is_json(encode(message, json=True), {})


PATTERN = "hb.{service}.{id}"


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.text("abc-_.*> %/", min_size=1))
def test_any_value_makes_one_token_and_comes_back(service: str, id: str) -> None:
    subject = fill(PATTERN, {"service": service, "id": id})
    assert subject.count(".") == 2
    assert not set(subject) & set(" *>\r\n\t")
    assert holes_of(PATTERN, subject) == {"service": service, "id": id}


def test_ids_are_left_as_they_are() -> None:
    assert fill(PATTERN, {"service": "worker", "id": "worker-1"}) == "hb.worker.worker-1"


def test_a_hole_that_is_left_out_matches_anything() -> None:
    assert fill_wildcards(PATTERN, {"service": "worker"}) == "hb.worker.*"
    assert fill_wildcards("evt.>", {}) == "evt.>"


@pytest.mark.parametrize(("holes", "words"), [({"service": "s"}, "needs id"), ({"service": "", "id": "i"}, "service")])
def test_a_missing_value_is_named(holes: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fill(PATTERN, holes)


@pytest.mark.parametrize(
    ("wanted", "subject", "matched"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.*.c", "a.b.c", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("a.*.>", "a.b", False),
        ("a.*.>", "a.b.c", True),
    ],
)
def test_wildcards_match_as_on_nats(wanted: str, subject: str, matched: bool) -> None:
    assert matches(wanted, subject) is matched
