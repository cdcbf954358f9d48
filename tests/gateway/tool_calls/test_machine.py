from hypothesis import given
from hypothesis import strategies as st

from livescale.services.gateway.tool_calls.machine import markers
from tests.gateway.tool_calls.texts import FORMATS, TEXTS, cut, read

FRAGMENTS = sorted(
    {
        *(mark for format in FORMATS.values() for mark in markers(format)),
        *(
            '{"name": "f"',
            '"name"',
            '"arguments"',
            ', "parameters": ',
            '{"a": 1}',
            "f",
            "f(",
            "a=1",
            ")",
            "</function>",
        ),
        *("<parameter=a>", "</parameter>", "1", " ", "\n", '"', "\\", ":", ",", "{", "}", "[", "]", "<", "|", "é"),
    }
)


@given(st.sampled_from(TEXTS), st.lists(st.integers(0, 1_000), max_size=8))
def test_a_text_says_the_same_however_it_is_cut(one: tuple[str, str, object], places: list[int]) -> None:
    name, text, said = one
    assert read(FORMATS[name], cut(text, places)) == said


def test_a_text_says_the_same_a_character_at_a_time() -> None:
    for name, text, said in TEXTS:
        assert read(FORMATS[name], text) == said


@given(
    st.sampled_from(sorted(FORMATS)),
    st.lists(st.sampled_from(FRAGMENTS), max_size=24).map("".join),
    st.lists(st.integers(0, 1_000), max_size=8),
)
def test_any_text_says_the_same_however_it_is_cut(name: str, text: str, places: list[int]) -> None:
    whole = read(FORMATS[name], [text])
    assert read(FORMATS[name], cut(text, places)) == whole
    assert read(FORMATS[name], text) == whole


@given(st.sampled_from(sorted(FORMATS)), st.text(st.characters(exclude_characters="<[{"), max_size=40))
def test_text_without_markers_stays_as_it_is(name: str, text: str) -> None:
    assert read(FORMATS[name], text).content == text
