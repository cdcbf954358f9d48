"""How a value looks in a table."""

import io

import msgspec
import pytest
from rich.console import Console

from livescale.services.cli.tables import cell, print_rows


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


class Row(msgspec.Struct):
    id: str
    size_bytes: int = 4_350_080
    version: str = "0123456789abcdef0123456789abcdef"
    error: str | None = None
    paths: dict[str, str] = {}
    rank: int = 0
    host: str = "a-machine-with-a-long-name.example.org"
    state: str = "spare"


def shown(width: int, *rows: Row) -> str:
    file = io.StringIO()
    print_rows(Console(file=file, width=width), "Rows", rows, quiet={"rank"})
    return file.getvalue()


def test_columns_without_anything_to_tell_are_left_out() -> None:
    text = shown(200, Row("a"), Row("b"))
    assert [name for name in ("error", "paths", "rank") if name in text] == []
    assert "error" in shown(200, Row("a"), Row("b", error="no room"))
    assert "rank" in shown(200, Row("a"), Row("b", rank=1))


def test_sizes_have_units_and_hashes_are_short() -> None:
    text = shown(200, Row("a"))
    assert "4.35 MB" in text
    assert "01234567 " in text
    assert "avx512_bf16-ef35e4b5 " in shown(200, Row("a", version="avx512_bf16-ef35e4b5416bc354"))


def test_where_there_is_no_room_what_is_the_same_is_told_once() -> None:
    rows = [Row(f"worker-{index}", state=("spare", "serving")[index % 2]) for index in range(4)]
    assert shown(200, *rows).count("example.org") == 4
    narrow = shown(60, *rows)
    assert narrow.replace("\n", " ").count("a-machine-with-a-long-name.example.org") == 1
    assert all(len(line) <= 60 for line in narrow.splitlines())
    assert narrow.count("serving") == 2
