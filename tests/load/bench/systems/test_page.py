"""The report: whole, well-formed HTML with every picture, also of systems of which nothing was answered."""

from html.parser import HTMLParser

import pytest

from livescale.load.bench.record import RecordPrinter
from livescale.load.bench.systems.page import render_systems
from livescale.load.bench.systems.play import SystemRun
from livescale.load.bench.systems.rows import Results, by_system, find_slo, rows_of, summarise
from tests.load.bench.systems.examples import faulty, run

VOID = {"meta", "br", "path", "use", "rect", "line", "circle"}


class Balance(HTMLParser):
    """Fails on an element that is closed in the wrong place."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def page(*runs: SystemRun) -> str:
    reference, slo = find_slo(by_system(runs))
    summaries = [summarise(of, slo) for of in by_system(runs).values()]
    results = Results(
        trace="t.csv",
        window="0+20",
        rate_scale=2.0,
        workers=8,
        topology="cluster-b",
        engine_profile="llama3-8b-a100",
        parameters_gb=16.06,
        seeds=1,
        reference=reference,
        slo=slo,
        systems=summaries,
        records=rows_of(summaries),
        runs=list(runs),
    )
    return render_systems(results, RecordPrinter("systems").conditions())


def test_the_page_is_whole_and_has_the_papers_figures() -> None:
    names = ("serverlessllm", "+network", "+multicast", "+zigzag", "distserve-full", "distserve-half", "ideal")
    text = page(*(run(name, ttft=0.1 * (at + 1)) for at, name in enumerate(names)))
    balance = Balance()
    balance.feed(text)
    assert balance.open == []
    assert balance.seen.count("svg") == 10
    for figure in ("TTFT over time", "Before the second token", "GPU time", "Host caches", "Network", "The ablation"):
        assert f"<h2>{figure}</h2>" in text
    assert "five times the means of distserve-full: TTFT 2500 ms" in text


@pytest.mark.filterwarnings("error")
def test_a_system_that_answered_nothing_is_shown_with_what_was_wrong() -> None:
    text = page(faulty(run("+zigzag"), 10))
    assert "+zigzag, seed 0: lost" in text
    assert "neither distserve-full nor vllm-full was run" in text
