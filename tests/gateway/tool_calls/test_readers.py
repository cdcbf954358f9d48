"""The parts of a format that end by themselves: how much of a text they use up, and what they make of it."""

import json
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.gateway.tool_calls.message import Calls, Delta
from livescale.services.gateway.tool_calls.readers import LONGEST_NAME, Arguments, JsonCall, Name, Reader
from tests.gateway.tool_calls.texts import TYPES, cut

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text(max_size=3), VALUES, max_size=3)
MARKED = partial(JsonCall, known=False)


def through(
    make: Callable[[Calls], Reader], pieces: Sequence[str], name: str = ""
) -> tuple[Reader, list[str], str, str]:
    """Feed a text piece by piece. Return its reader, the names that were called, their arguments, and what is left."""
    calls = Calls(TYPES, lambda index: f"call_{index}", name)
    reader, names, arguments, left = make(calls), list[str](), "", ""
    for piece in pieces:
        delta, text = Delta(), left + piece
        left = text if reader.done or reader.failed else text[reader.read(text, delta) :]
        names += [call.name for call in delta.calls if call.name is not None]
        arguments += "".join(call.arguments for call in delta.calls)
    return reader, names, arguments, left


@given(OBJECTS, st.text(max_size=4), st.lists(st.integers(0, 200), max_size=5))
def test_arguments_are_handed_on_as_they_stand_and_end_with_their_object(
    given_arguments: dict[str, object], after: str, places: list[int]
) -> None:
    text = json.dumps(given_arguments)
    reader, names, arguments, left = through(Arguments, cut(text + after, places), "f")
    assert (reader.done, names, arguments, left) == (True, ["f"], text, after)


@given(OBJECTS, st.permutations(["name", "arguments", "id"]), st.lists(st.integers(0, 200), max_size=5))
def test_a_call_has_its_name_and_arguments_in_any_order(
    given_arguments: dict[str, object], order: list[str], places: list[int]
) -> None:
    values = {"name": "f", "arguments": given_arguments, "id": [1, "x"]}
    text = json.dumps({key: values[key] for key in order})
    reader, names, arguments, left = through(MARKED, cut(text + " after", places))
    assert (reader.done, names, left) == (True, ["f"], " after")
    assert json.loads(arguments) == given_arguments


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"name": "f", "parameters": {"a": 1}}', '{"a": 1}'),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"arguments": "{\\"a\\": 1}", "name": "f"}', '{"a": 1}'),
        ('{"name": "f"}', "{}"),
    ],
)
def test_arguments_may_be_called_parameters_be_written_as_a_string_or_be_absent(text: str, arguments: str) -> None:
    reader, names, said, _ = through(MARKED, [text])
    assert (reader.done, names, said) == (True, ["f"], arguments)


@pytest.mark.parametrize(
    "text", ['{"arguments": {}}', "{}", '{"name": 1}', '{"name": ""}', '{"name": "' + "f" * 65 + '"}', "[1]", '{"a" 1}']
)
def test_an_object_without_a_name_is_no_call(text: str) -> None:
    reader, names, _, _ = through(MARKED, [text])
    assert (reader.failed, names) == (True, [])


def test_where_no_marker_tells_calls_an_unknown_name_is_none() -> None:
    text = '{"name": "Bonn", "arguments": {}}'
    assert through(partial(JsonCall, known=True), [text])[0].failed
    assert through(MARKED, [text])[1] == ["Bonn"]


def test_a_call_that_the_text_cuts_off_is_one_once_its_name_is_known() -> None:
    for text, called in (('{"name": "f", "arg', True), ('{"arguments": {"a"', False)):
        reader, names, _, _ = through(MARKED, [text])
        reader.end(Delta())
        assert (not reader.failed, bool(names)) == (called, called)


@given(st.from_regex(r"[A-Za-z_.\-]{1,64}", fullmatch=True), st.lists(st.integers(0, 80), max_size=3))
def test_a_name_ends_before_what_no_name_has(name: str, places: list[int]) -> None:
    calls = Calls(TYPES, str)
    reader, _, _, left = through(lambda _: Name(calls), cut(f" {name}(a=1)", places))
    assert (reader.done, reader.failed, calls.name, left) == (True, False, name, "(a=1)")


@pytest.mark.parametrize("text", ["(", " {", "a" * (LONGEST_NAME + 1)])
def test_no_name_and_one_without_end_are_given_up(text: str) -> None:
    assert through(Name, [text])[0].failed
