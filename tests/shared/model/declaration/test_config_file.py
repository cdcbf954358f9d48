"""`config.json`, read key by key: every value of another type, and every key that nobody knows, is refused by name."""

from collections.abc import Callable
from typing import Any

import pytest

from livescale.shared.model.declaration.config_file import LARGEST_SIZE, CheckpointError, ConfigFile

Read = Callable[[ConfigFile], object]
READERS: dict[str, Read] = {
    "size": lambda config: config.size("key"),
    "whole": lambda config: config.whole("key"),
    "number": lambda config: config.number("key"),
    "positive": lambda config: config.positive("key"),
    "flag": lambda config: config.flag("key"),
    "text": lambda config: config.text("key"),
    "mapping": lambda config: config.mapping("key"),
    "texts": lambda config: config.texts("key"),
    "wholes": lambda config: config.wholes("key"),
    "token_ids": lambda config: config.token_ids("key"),
    "square": lambda config: config.square("key", 1),
}


@pytest.mark.parametrize(
    ("reader", "good", "bad"),
    [
        ("size", [1, LARGEST_SIZE], [0, -1, LARGEST_SIZE + 1, 1.0, True, "1", [1]]),
        ("whole", [-1, 0, 7], [-2, 1.5, True, "1"]),
        ("number", [0, -1.5, 1e15], [1e16, float("nan"), float("inf"), True, "1"]),
        ("positive", [1e-9, 3], [0, -1, "1"]),
        ("flag", [True, False], [0, 1, "true"]),
        ("text", ["", "a"], [1, ["a"]]),
        ("mapping", [{}, {"a": 1}], [[], "a"]),
        ("texts", [[], ["a"]], ["a", [1], ["a", None]]),
        ("wholes", [[], [1, 2]], [1, [1.5], [True]]),
        ("square", [1, 7], [0, -1, [1, 2], [2], [2, 2, 2], [0, 0], "1", True]),
        ("token_ids", [[1, 2], []], ["1", 2**31, [2**31], [True], 1.0]),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(reader: str, good: list[Any], bad: list[Any]) -> None:
    read = READERS[reader]
    for value in good:
        assert read(ConfigFile({"key": value})) == value
    for value in bad:
        with pytest.raises(CheckpointError, match=r"^key is .*, must be "):
            read(ConfigFile({"key": value}))


def test_one_token_id_is_a_list_of_one() -> None:
    assert ConfigFile({"key": 7}).token_ids("key") == [7]


def test_null_is_absent_and_what_is_required_is_missed_by_name() -> None:
    for config in (ConfigFile({"key": None}), ConfigFile({})):
        assert (config.size("key", 3), config.flag("key"), config.texts("key")) == (3, False, [])
        with pytest.raises(CheckpointError, match="key is missing"):
            config.size("key")


def test_null_switches_off_what_is_on_by_default() -> None:
    assert ConfigFile({"key": None}).unless_null("key", 0.5) == 0
    assert ConfigFile({}).unless_null("key", 0.5) == 0.5


def test_a_key_that_nobody_reads_is_refused_unless_it_is_harmless_or_off() -> None:
    config = ConfigFile({"hidden_size": 8, "torch_dtype": "float32", "new_trick": False, "newer_trick": None})
    with pytest.raises(CheckpointError, match="'hidden_size' is not known"):
        config.refuse_unread()
    config.size("hidden_size")
    config.refuse_unread()
    on = ConfigFile({"new_trick": True})
    with pytest.raises(CheckpointError, match=r"'new_trick' is not known of this architecture; remove it"):
        on.refuse_unread()
    on.flag("new_trick")
    on.refuse_unread()


def test_another_kind_of_model_is_refused_with_its_remedy() -> None:
    config = ConfigFile({"vision_config": {}, "hidden_size": 8})
    with pytest.raises(CheckpointError, match="vision_config: a request carries tokens only; use"):
        config.refuse("audio_config", "vision_config")
    config.refuse("audio_config")


def test_a_long_value_does_not_fill_the_message() -> None:
    with pytest.raises(CheckpointError) as refused:
        ConfigFile({"key": "x" * 10_000}).size("key")
    assert len(str(refused.value)) < 200
