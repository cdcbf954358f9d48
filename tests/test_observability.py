"""The Grafana board and the Prometheus rules are whole, and name only what there is."""

import shutil
import subprocess
from collections import Counter
from itertools import combinations
from typing import Any

import pytest
import yaml

from docs.tools.declared import find_metrics
from livescale.services.cli.metrics import target_groups
from livescale.shared.messages.membership import Member
from tests.observability import PROMETHEUS, RULES_TEST, alerts, board, declared, names_in, panels, queries, rules

PROMTOOL = shutil.which("promtool")
WIDTH = 24
STANDARD = {"process_resident_memory_bytes", "process_cpu_seconds_total"}
# Families that no panel shows, and why.
NOT_SHOWN: dict[str, str] = {}


def read_by_panels() -> set[str]:
    return {name for query in queries() for name in names_in(query.expr)}


def test_every_panel_has_a_title_of_its_own_and_reads_something() -> None:
    titles = Counter(panel["title"] for panel in panels())
    assert not [title for title, count in titles.items() if count > 1]
    assert len({panel["id"] for panel in board()["panels"]}) == len(board()["panels"])
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            assert list(names_in(target["expr"])), panel["title"]
            assert target["legendFormat"], panel["title"]


def test_no_panel_lies_on_another() -> None:
    def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= WIDTH, panel["title"]
        return {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}

    for one, other in combinations(board()["panels"], 2):
        assert not cells(one) & cells(other), (one["title"], other["title"])


def test_panels_and_rules_read_only_what_is_declared() -> None:
    known = STANDARD.union(*declared().values())
    assert read_by_panels() <= known
    assert {name for rule in rules() for name in names_in(rule["expr"])} <= known


def test_every_family_is_on_the_board_or_on_the_list_of_those_that_are_not() -> None:
    read = read_by_panels()
    unread = {family for family, names in declared().items() if not names & read}
    assert unread == NOT_SHOWN.keys()
    assert all(NOT_SHOWN.values())


def test_labels_of_targets_hide_no_label_of_a_metric() -> None:
    member = Member(service="worker", id="w", pid=1, host="h", epoch=1, lease="alive", system="h:1")
    [target] = target_groups([member], "default")
    assert not target.labels.keys() & {label for _, _, labels, _ in find_metrics() for label in labels}


def test_every_alert_says_what_it_means_and_what_to_do() -> None:
    for alert in alerts():
        assert alert["labels"]["severity"] in ("page", "ticket"), alert["alert"]
        assert alert["annotations"].keys() == {"summary", "description"}, alert["alert"]


def test_every_alert_is_tried_firing_and_silent() -> None:
    tried: dict[str, set[bool]] = {}
    for case in yaml.safe_load(RULES_TEST.read_text())["tests"]:
        for check in case["alert_rule_test"]:
            tried.setdefault(check["alertname"], set()).add("exp_alerts" in check)
    assert tried == {alert["alert"]: {True, False} for alert in alerts()}


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus")
def test_promtool_takes_the_rules_and_each_alert_does_what_its_test_says() -> None:
    for words in (
        ("check", "rules", "rules.yml"),
        ("test", "rules", "rules_test.yml"),
        ("check", "config", "prometheus.yml"),
    ):
        done = subprocess.run([str(PROMTOOL), *words], cwd=PROMETHEUS, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
