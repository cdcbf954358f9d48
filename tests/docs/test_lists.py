"""Tables that people wrote and the code must agree with: error codes, and rules of the monitor."""

import ast
import re
from collections.abc import Iterator

from tests.docs.pages import DOCS, ROOT


def cells(page: str, heading: str) -> set[str]:
    """The words in backticks below this heading, in all tables of a page in docs/."""
    found: set[str] = set()
    column = None
    for line in (DOCS / page).read_text().splitlines():
        row = [each.strip() for each in line.split("|")] if line.startswith("|") else []
        if not row:
            column = None
        elif heading in row:
            column = row.index(heading)
        elif column is not None:
            found.update(re.findall(r"`([^`]+)`", row[column]))
    return found


def nodes(package: str) -> Iterator[ast.AST]:
    for path in sorted((ROOT / package).glob("*.py")):
        yield from ast.walk(ast.parse(path.read_text()))


def error_codes() -> Iterator[str]:
    """Every code that the gateway gives an ApiError, where it makes one or as a default."""
    for node in nodes("services/gateway"):
        if isinstance(node, ast.Call):
            values = [each.value for each in node.keywords if each.arg == "code"]
        elif isinstance(node, ast.FunctionDef):
            named = node.args.args[len(node.args.args) - len(node.args.defaults) :]
            values = [value for arg, value in zip(named, node.args.defaults, strict=True) if arg.arg == "code"]
        else:
            continue
        yield from (each.value for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str))


def rules() -> Iterator[str]:
    """Every rule by which the monitor decides: of needs, and of its acts: action, target, rule, reason."""
    for node in nodes("services/monitor"):
        match node:
            case ast.Call(func=ast.Name(id="Need"), args=[ast.Constant(value=str(rule)), *_]):
                yield rule
            case ast.Call(func=ast.Name(id="Act"), args=[_, _, ast.Constant(value=str(rule)), *_]):
                yield rule
            case ast.Call(keywords=keywords):
                yield from (
                    str(each.value.value)
                    for each in keywords
                    if each.arg == "rule" and isinstance(each.value, ast.Constant)
                )


def test_every_error_code_is_explained() -> None:
    codes = set(error_codes())
    assert {"queue_full", "overloaded", "invalid_http"} <= codes
    assert not codes - cells("how-to/errors.md", "code")


def test_no_error_code_is_explained_that_is_not_given() -> None:
    assert not cells("how-to/errors.md", "code") - set(error_codes())


def test_every_rule_of_the_monitor_is_explained() -> None:
    found = set(rules())
    assert {"prefill", "capacity", "idle", "yield"} <= found
    assert not found - cells("how-to/why-not.md", "rule")


def test_every_rule_that_is_explained_is_in_the_code() -> None:
    words = {node.value for node in nodes("services/monitor") if isinstance(node, ast.Constant)}
    assert cells("how-to/why-not.md", "rule") - words == {"operator"}  # that one is the planner's
