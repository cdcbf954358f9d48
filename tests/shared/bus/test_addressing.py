import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.shared.bus.addressing import fill, fill_wildcards, holes_of, matches

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
