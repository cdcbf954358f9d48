"""Calls that are written in Python: what is no call is given up."""

from livescale.services.gateway.tool_calls.message import Calls, Delta
from livescale.services.gateway.tool_calls.python_calls import LONGEST, PythonCalls


def test_a_name_that_does_not_end_is_given_up_soon() -> None:
    for endless in ("a" * 10_000, " " * 10_000):
        reader = PythonCalls(Calls({"f": {}}, str))
        assert reader.read(endless, Delta()) <= LONGEST
        assert reader.failed
