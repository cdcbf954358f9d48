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

# The board that vLLM ships, version 8: by its panels the families that it reads, and how.
VLLM_SHARES = (0.99, 0.95, 0.9, 0.5)
VLLM_LATENCIES = {
    "E2E Request Latency": "e2e_request_latency_seconds",
    "Inter Token Latency": "inter_token_latency_seconds",
    "Time To First Token Latency": "time_to_first_token_seconds",
}
VLLM_RATES = {
    "Token Throughput": ("prompt_tokens_total", "generation_tokens_total"),
    "Queue Time": ("request_queue_time_seconds_sum",),
    "Requests Prefill and Decode Time": ("request_prefill_time_seconds_sum", "request_decode_time_seconds_sum"),
    "Max Generation Token in Sequence Group": ("request_max_num_generation_tokens_sum",),
}
VLLM_GAUGES = {
    "Scheduler State": ("num_requests_running", "num_requests_waiting"),
    "Cache Utilization": ("kv_cache_usage_perc",),
}
VLLM_COUNTS = {
    "Request Prompt Length": ("le", "request_prompt_tokens_bucket"),
    "Request Generation Length": ("le", "request_generation_tokens_bucket"),
    "Finish Reason": ("finished_reason", "request_success_total"),
}


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


def vllm_queries(interval: str, model: str) -> list[Query]:
    """What the twelve panels of the board that vLLM ships read, in the same forms."""
    label, window = f'{{model_name="{model}"}}', f"[{interval}]"

    def rate(series: str) -> str:
        return f"rate(vllm:{series}{label}{window})"

    found = [
        Query(f"vLLM: {panel}", expr)
        for panel, family in VLLM_LATENCIES.items()
        for expr in (
            *(f"histogram_quantile({share}, sum by (le) ({rate(family + '_bucket')}))" for share in VLLM_SHARES),
            f"{rate(family + '_sum')} / {rate(family + '_count')}",
        )
    ]
    found += [Query(f"vLLM: {panel}", rate(name)) for panel, names in VLLM_RATES.items() for name in names]
    found += [Query(f"vLLM: {panel}", f"vllm:{name}{label}") for panel, names in VLLM_GAUGES.items() for name in names]
    found += [
        Query(f"vLLM: {panel}", f"sum by ({by}) (increase(vllm:{series}{label}{window}))")
        for panel, (by, series) in VLLM_COUNTS.items()
    ]
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
