"""What is committed for Prometheus and Grafana: the board's expressions, the alerts, and the families they name."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from docs.tools.declared import find_metrics

ROOT = Path(__file__).parent.parent
PROMETHEUS = ROOT / "Dockerfiles" / "prometheus"
RULES = PROMETHEUS / "rules.yml"
RULES_TEST = PROMETHEUS / "rules_test.yml"
BOARD = ROOT / "Dockerfiles" / "grafana" / "livescale.json"
NAME = re.compile(r"\b(?:livescale_|vllm:|process_)[a-z0-9_]+")
PARTS = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}


@dataclass(frozen=True)
class Query:
    """An expression of a panel, as Prometheus takes it."""

    panel: str
    expr: str


def board() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(BOARD.read_text())
    return found


def panels() -> list[dict[str, Any]]:
    """The panels that show something, without the rows that they are under."""
    return [panel for panel in board()["panels"] if panel["type"] != "row"]


def queries(interval: str = "1m", model: str = ".*") -> list[Query]:
    """Every expression of the board, with its variables filled in."""
    values = {"$__rate_interval": interval, "$__range": interval, "$model": model}
    found = []
    for panel in panels():
        for target in panel["targets"]:
            expr = target["expr"]
            for name, value in values.items():
                expr = expr.replace(name, value)
            found.append(Query(panel["title"], expr))
    return found


def rules() -> list[dict[str, Any]]:
    """Every rule, of alerts and of recorded series."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def declared() -> dict[str, set[str]]:
    """The names under which each family is read, by family."""
    return {name: {name + part for part in PARTS[kind]} for name, kind, _, _ in find_metrics()}


def names_in(expr: str) -> Iterator[str]:
    """The series of ours that an expression reads, and those of the standard process collector."""
    yield from NAME.findall(re.sub(r'"[^"]*"', "", expr))
