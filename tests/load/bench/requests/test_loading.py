"""Requests that wait for an instance, with a schema and without."""

from typing import Any

import pytest

from livescale.load.bench.requests.loading import loading_rows, request_body


def test_requests_differ_by_their_schema_only_and_every_schema_is_new() -> None:
    plain: Any = request_body(4, by_schema=False)
    first: Any = request_body(4, by_schema=True)
    second: Any = request_body(5, by_schema=True)
    assert {name for name in first if name not in plain} == {"response_format"}
    assert {name for name in plain if name not in first} == {"ignore_eos"}
    assert first["response_format"] != second["response_format"]
    assert first["prompt"] != second["prompt"]


def test_the_medians_are_compared() -> None:
    [row] = loading_rows({"without": [2.0, 2.0, 9.0], "with": [2.1, 2.1, 2.1]})
    assert (row.ratio, row.ok) == (pytest.approx(1.05), True)
    [row] = loading_rows({"without": [2.0], "with": [2.3]})
    assert row.ok is False
