"""How a value looks in a table."""

import pytest

from services.cli.tables import cell


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (["a", "b"], "a b"),
        (1.234, "1.23"),
        (7, "7"),
        ({"host-0": "mapped", "worker-1": "cma"}, "host-0: mapped, worker-1: cma"),
        ({}, "-"),
    ],
)
def test_a_cell_is_for_people(value: object, shown: str) -> None:
    assert cell(value) == shown
