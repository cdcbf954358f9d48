"""Keys of a `quantization_config`: what they may say, and how one that may not is named."""

import pytest

from livescale.shared.model.declaration.checked_keys import CheckedKeys, group_inputs, integer_codes
from livescale.shared.model.declaration.config_file import CheckpointError

KEYS = CheckedKeys({"bits": 4, "flag": True, "names": ["a", 3, "b"], "null": None, "deep": {"bits": "x"}}, "q")


def test_a_key_that_is_null_is_absent() -> None:
    assert KEYS.whole("null", 7) == 7
    KEYS.refuse("null", "is there")


def test_a_flag_is_no_number_and_a_text_is_none() -> None:
    with pytest.raises(CheckpointError, match=r"^q: flag is 'True', must be a whole number"):
        KEYS.whole("flag", 0)


def test_a_key_within_another_is_named_with_it() -> None:
    with pytest.raises(CheckpointError, match=r"^q\.deep: bits is 'x'"):
        KEYS.object("deep").whole("bits", 0)


def test_of_a_list_of_names_other_things_are_left_out_and_a_text_is_no_list() -> None:
    assert KEYS.names("names", "absent") == ["a", "b"]
    with pytest.raises(CheckpointError, match="bits must be a list"):
        KEYS.names("bits")


def test_codes_have_four_or_eight_bits() -> None:
    assert [integer_codes(KEYS, bits) for bits in (4, 8)] == ["int4", "int8"]
    with pytest.raises(CheckpointError, match="bits is 3; supported are 4 and 8"):
        integer_codes(KEYS, 3)


def test_a_group_of_minus_one_is_all_inputs_and_an_odd_one_is_refused() -> None:
    assert [group_inputs(KEYS, size) for size in (-1, 128)] == [0, 128]
    for size in (0, 1, 33):
        with pytest.raises(CheckpointError, match=f"group_size is {size}, must be even"):
            group_inputs(KEYS, size)
