import msgspec
import pytest

from livescale.load.records import find_fault
from tests.load.sample_run import record


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"error": "worker lost"}, "worker lost"),
        ({"token_ids": [1]}, "1 of 8 tokens came"),
        ({"token_ids": []}, "no token ids came: the server does not know return_token_ids"),
        ({"finish_reason": "stop"}, "finish reason 'stop' instead of 'length'"),
        ({"finish_reason": None}, "finish reason None instead of 'length'"),
    ],
)
def test_a_fault_is_named(change: dict[str, object], fault: str | None) -> None:
    assert find_fault(msgspec.structs.replace(record(0, 0.0), **change)) == fault
