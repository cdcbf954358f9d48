"""Headers and bytes: each header survives, and no text in a header becomes another header."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.shared.bus.codec import pack, unpack

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,20}", fullmatch=True)
LINES = st.text(st.characters(blacklist_categories=("C", "Z")), max_size=50)


@given(st.dictionaries(NAMES, LINES, max_size=5))
def test_what_is_packed_is_unpacked(headers: dict[str, str]) -> None:
    assert unpack(pack(headers)) == headers


@given(st.text(max_size=100))
def test_a_value_stays_within_its_header(value: str) -> None:
    assert unpack(pack({"Error": value, "Code": "400"})).keys() == {"Error", "Code"}


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
