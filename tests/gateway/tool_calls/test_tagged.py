"""Arguments between tags: what the schema calls a text stays one, and all else is JSON of its type."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.gateway.tool_calls.message import Calls, Delta
from livescale.services.gateway.tool_calls.tagged import BEGIN, CLOSE, END, TaggedArguments, as_json, json_type
from tests.gateway.tool_calls.texts import TYPES, cut

NUMBER, ARRAY = frozenset({"number"}), frozenset({"array"})
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda text: END not in text)


def arguments_of(pieces: Sequence[str], name: str = "f") -> tuple[str, str]:
    """The arguments that these pieces of a text say, and what of the text is left."""
    calls = Calls(TYPES, lambda index: f"call_{index}", name)
    reader, said, left = TaggedArguments(calls), "", ""
    for piece in pieces:
        delta, text = Delta(), left + piece
        left = text if reader.done else text[reader.read(text, delta) :]
        said += "".join(call.arguments for call in delta.calls)
    return said, left


@given(TEXTS, st.integers(), st.lists(st.integers(0, 100), max_size=5))
def test_values_have_the_types_of_the_schema_however_the_text_is_cut(text: str, number: int, places: list[int]) -> None:
    written = f"\n{BEGIN}s>\n{text}\n{END}\n{BEGIN}a>\n{number}\n{END}\n{CLOSE}after"
    said, left = arguments_of(cut(written, places))
    assert json.loads(said) == {"s": text, "a": number}
    assert left == "after"


@pytest.mark.parametrize(
    ("parameter", "value", "read"),
    [
        ("s", "1", "1"),
        ("a", "1", 1),
        ("a", "one", "one"),
        ("o", "None", None),
        ("o", "null", None),
        ("o", "some", "some"),
        ("unknown", "1", "1"),
    ],
)
def test_a_value_that_cannot_be_read_as_its_type_is_a_text(parameter: str, value: str, read: object) -> None:
    said, _ = arguments_of([f"{BEGIN}{parameter}>{value}{END}{CLOSE}"])
    assert json.loads(said) == {parameter: read}


def test_no_parameters_are_an_empty_object_and_a_text_that_goes_on_otherwise_ends_them() -> None:
    assert arguments_of([CLOSE]) == ("{}", "")
    assert arguments_of([f"{BEGIN}s>x{END} And so on"]) == ('{"s":"x"}', "And so on")


def test_a_text_is_handed_on_before_its_end() -> None:
    said, _ = arguments_of([f"{BEGIN}s>Once upon a"])
    assert said == '{"s":"Once upon a'


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999"])
def test_what_json_has_no_number_for_is_a_text(value: str) -> None:
    assert as_json(value, NUMBER) == json.dumps(value)
    assert as_json("1.5", NUMBER) == "1.5"


def test_half_of_a_surrogate_gets_into_no_answer() -> None:
    half = json.dumps("\ud800")
    assert as_json(f"[{half}]", ARRAY) == json.dumps(f"[{half}]")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
        max_leaves=5,
    )
)
def test_json_of_an_allowed_type_keeps_its_value(value: object) -> None:
    assert json.loads(as_json(json.dumps(value), json_type(value))) == value
