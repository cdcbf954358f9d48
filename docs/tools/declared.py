"""What the source declares: metrics and log events. It is parsed and not imported, as actors would have to be made."""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
METRIC = re.compile(r"(livescale_|vllm:)[a-z0-9_]+$")
KINDS = {
    **{kind: kind for kind in ("counter", "gauge", "histogram")},
    **{"watch_counts": "counter", "watch_gauge": "gauge"},
}
LEVELS = ("debug", "info", "warning", "error", "exception")


def find_metrics() -> Iterator[tuple[str, str, Sequence[str], str]]:
    """Name, kind, labels and meaning of every family that the services declare."""
    for tree in trees():
        words = {
            target.id: node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for call, name, kind in metric_calls(tree):
            doc = next((each.value for each in call.args[1:2] if isinstance(each, ast.Constant)), "")
            labels = [each.value for each in call.keywords if each.arg == "labels"] or call.args[2:3]
            total = "_total" if kind == "counter" and not name.endswith("_total") else ""
            yield name + total, kind, [one for each in labels for one in labels_of(each, words)], str(doc)


def metric_calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str, str]]:
    """Each call that declares a family: by a method of telemetry, or by a helper that completes the name."""
    helpers = dict(metric_helpers(tree))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
            continue
        called, first = called_name(node), str(node.args[0].value)
        if called in KINDS and METRIC.match(first):
            yield node, first, KINDS[called]
        elif called in helpers:
            before, after, kind, labels = helpers[called]
            yield ast.Call(node.func, [*node.args[:2], labels], []), before + first + after, kind


def metric_helpers(tree: ast.AST) -> Iterator[tuple[str, tuple[str, str, str, ast.expr]]]:
    """Functions that declare a family under an f-string: what is before and after the name, its kind, its labels."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if (
                    isinstance(node, ast.Call)
                    and called_name(node) in KINDS
                    and isinstance(node.args[0], ast.JoinedStr)
                ):
                    words = [part.value if isinstance(part, ast.Constant) else "" for part in node.args[0].values]
                    after = str(words[2]) if len(words) > 2 else ""
                    yield function.name, (str(words[0]), after, KINDS[called_name(node)], node.args[2])


def labels_of(node: ast.expr | None, words: dict[str, ast.expr]) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(label)):
            yield label
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            for part in parts:
                yield from labels_of(part, words)
        case ast.Starred(value=ast.Name(id=name)) | ast.Name(id=name) if name in words:
            yield from labels_of(words[name], words)


def find_logs() -> list[tuple[str, tuple[set[str], set[str]]]]:
    """Every log event of the services: its levels and its fields."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or called_name(node) not in LEVELS or len(node.args) != 1:
                continue
            first = node.args[0]
            if isinstance(first, ast.Constant) and re.fullmatch(r"[a-z]+(_[a-z]+)*", str(first.value)):
                levels, fields = found.setdefault(str(first.value), (set(), set()))
                levels.add(called_name(node).replace("exception", "error"))
                fields.update(each.arg for each in node.keywords if each.arg and each.arg != "exc_info")
    return sorted(found.items())


def called_name(node: ast.Call) -> str:
    match node.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def trees() -> Iterator[ast.AST]:
    for top in ("services", "shared"):
        for path in sorted((ROOT / top).rglob("*.py")):
            text = path.read_text()
            if "livescale_" in text or "vllm:" in text or "log." in text or "get_logger" in text:
                yield ast.parse(text)
