"""One trace for each request, whatever happens to it: a whole system sends its spans to a collector in this process."""

import asyncio
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import aiohttp
import pytest

from livescale.shared.process.otlp import scale_traceparent
from tests.collector import Collector, SeenSpan, collecting
from tests.system.conftest import System, started
from tests.system.scaling import PATIENCE_SECONDS, ScalingSystem, targets, watching
from tests.system.under_load import SystemUnderLoad, at_once

RATE = 2e6  # bytes a second: two seconds for the whole model
CALLER = "b7ad6b7169203331"
BURST = 9
WORKERS = 3


@dataclass
class TracedSystem:
    """A running system, and who hears of its requests."""

    system: System
    collector: Collector
    asked: int = 0

    async def ask(self, tokens: int, prompt: int = 3) -> str:
        """Ask as the first of a trace, whose id is returned once the answer is complete."""
        self.asked += 1
        trace = f"{self.asked:032x}"
        headers = {"traceparent": f"00-{trace}-{CALLER}-01"}
        body = {
            "model": "m",
            "prompt": [5] * prompt,
            "max_tokens": tokens,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        timeout = aiohttp.ClientTimeout(total=2 * PATIENCE_SECONDS)  # beside others a token may take 50 ms
        async with (
            aiohttp.ClientSession(self.system.url, timeout=timeout) as session,
            session.post("/v1/completions", json=body, headers=headers) as answer,
        ):
            assert answer.status == 200, await answer.text()
            assert len((await answer.json())["choices"][0]["token_ids"]) == tokens
        return trace

    def trace(self, id: str) -> list[SeenSpan]:
        """The whole trace of a request that has ended."""

        def is_whole() -> bool:
            return {"decode", "route", "text_completion m"} <= {span.name for span in self.collector.trace(id)}

        self.collector.until(is_whole, f"trace {id}")
        return self.collector.trace(id)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TracedSystem]:
    """A model at zero, three workers behind slow links."""
    with pytest.MonkeyPatch.context() as patch, collecting(patch.setenv) as collector:
        options = "--workers", str(WORKERS), "--min-instances", "0", "--live", "zigzag", "--link-rate", str(RATE)
        # Whichever instances there were before, a new one is sent all parameters.
        with started(tmp_path_factory.mktemp("tracing"), *options, "--no-keep-parameters") as system:
            yield TracedSystem(system, collector)


@pytest.fixture
def stage(traced: TracedSystem) -> SystemUnderLoad:
    return SystemUnderLoad(traced.system, at_once("m", "float32", 1, 1))


def root_of(spans: list[SeenSpan]) -> SeenSpan:
    """The gateway's span, which is the client's child, and the parent of all others."""
    [root] = [span for span in spans if span.service == "livescale-gateway"]
    assert root.parent == CALLER
    others = [span for span in spans if span is not root]
    assert {span.parent for span in others} == {root.id}
    assert all(root.start - 0.5 <= span.start <= span.end <= root.end + 0.5 for span in others)
    return root


def named(spans: list[SeenSpan], name: str) -> list[SeenSpan]:
    return [span for span in spans if span.name == name]


def by(spans: list[SeenSpan], service: str) -> list[str]:
    return [span.name for span in spans if span.service == f"livescale-{service}"]


@pytest.mark.system
async def test_a_request_that_waited_at_zero_is_linked_with_its_scale_and_the_scale_with_it(
    traced: TracedSystem, stage: SystemUnderLoad
) -> None:
    async with watching(stage) as site:  # another test may have had instances
        await site.rest(0, workers=WORKERS)
    spans = await asyncio.to_thread(traced.trace, await traced.ask(8))
    root = root_of(spans)
    assert root.attributes["gen_ai.operation.name"] == "text_completion"
    assert (root.attributes["gen_ai.usage.input_tokens"], root.attributes["gen_ai.usage.output_tokens"]) == (3, 8)
    assert "first_token" in root.events
    assert by(spans, "router") == ["queue", "route"]
    assert by(spans, "worker")[:1] == ["queue"]
    assert {"prefill", "decode"} <= set(by(spans, "worker"))
    waited = next(span for span in named(spans, "queue") if span.service == "livescale-router")
    assert waited.end - waited.start > 0.1
    [(scale_trace, scale_span)] = waited.links
    traced.collector.until(lambda: bool(named(traced.collector.trace(scale_trace), "scale m")), "the scale")
    scale = traced.collector.trace(scale_trace)
    [planned] = named(scale, "scale m")
    assert (planned.service, planned.id, planned.parent) == ("livescale-planner", scale_span, "")
    assert scale_traceparent(waited.attributes["livescale.scale.id"])[3:52] == f"{scale_trace}-{scale_span}"
    assert [trace for trace, _ in planned.links] == [root.trace]
    [load], [flow], [transfer] = (named(scale, name) for name in ("load", "flow", "transfer"))
    assert (load.parent, transfer.parent, flow.parent) == (planned.id, planned.id, load.id)
    assert transfer.service == "livescale-worker"
    assert transfer.events == ("block_ready",) * 5
    traced.collector.until(lambda: bool(named(traced.collector.trace(scale_trace), "send")), "what the host sent")
    [sent] = named(traced.collector.trace(scale_trace), "send")
    assert (sent.service, sent.parent) == ("livescale-host", planned.id)
    assert sent.attributes["livescale.flow.receiver"] == transfer.instance
    assert transfer.attributes["livescale.transfer.received_bytes"] > 0


@pytest.mark.system
async def test_a_request_that_changes_hands_during_a_live_scale_stays_one_trace(
    traced: TracedSystem, stage: SystemUnderLoad
) -> None:
    async with watching(stage) as site:
        await site.rest(1, workers=WORKERS)
        await site.have(2)
        await site.watch.until(lambda: bool(targets(site)), "a worker is live")
        ids = await asyncio.gather(*(traced.ask(20, 200) for _ in range(BURST)))
        traces = [await asyncio.to_thread(traced.trace, id) for id in ids]
        await site.watch.until(lambda: len(site.watch.serving()) == 2, "two serve")
    assert len({root_of(spans).trace for spans in traces}) == BURST
    await asyncio.to_thread(traced.collector.until, lambda: bool(moved(traced, ids)), "a request that changed hands")
    spans = moved(traced, ids)[0]
    root_of(spans)
    hand_off, workers = named(spans, "handoff")[0], [span for span in spans if span.service == "livescale-worker"]
    assert hand_off.attributes["livescale.handoff.from"] == workers[0].instance != hand_off.instance
    assert [span.instance for span in named(spans, "decode")] == [named(spans, "handoff")[-1].instance]


@pytest.mark.system
async def test_a_request_whose_worker_is_killed_goes_on_in_the_same_trace(
    traced: TracedSystem, stage: SystemUnderLoad
) -> None:
    async with watching(stage) as site:
        await site.have(2)
        await site.watch.until(lambda: len(site.watch.serving()) == 2, "two serve")
        site.watch.speakers.clear()
        asking = asyncio.create_task(traced.ask(1_000))
        await site.watch.until(lambda: bool(site.watch.speakers), "it has begun")
        victim = await kill(site, site.watch.speakers)
        spans = await asyncio.to_thread(traced.trace, await asking)
    assert "submitted_again" in root_of(spans).events
    assert next(span.attributes["livescale.worker.id"] for span in named(spans, "route")) == victim
    assert victim not in {span.instance for span in named(spans, "decode")}


@pytest.mark.system
async def test_the_gateway_sends_metrics_under_opentelemetry_s_names(traced: TracedSystem) -> None:
    await traced.ask(8)
    collector, name = traced.collector, "gen_ai.server.request.duration"

    def counted() -> bool:
        return sum(point.count for point in collector.histograms(name)) == traced.asked

    await asyncio.to_thread(collector.until, counted, "every request is counted")
    [point] = collector.histograms(name)
    labels = {one.key: one.value.string_value for one in point.attributes}
    assert labels["gen_ai.operation.name"] == "text_completion"
    assert (labels["gen_ai.provider.name"], labels["gen_ai.request.model"]) == ("livescale", "m")
    for more in ("gen_ai.server.time_to_first_token", "gen_ai.server.time_per_output_token"):
        assert sum(one.count for one in collector.histograms(more)) == traced.asked
    assert {
        one.value.string_value
        for point in collector.histograms("gen_ai.client.token.usage")
        for one in point.attributes
    } >= {"input", "output"}


def moved(traced: TracedSystem, ids: list[str]) -> list[list[SeenSpan]]:
    """The traces that both workers have told their part of."""
    traces = [traced.collector.trace(id) for id in ids]
    whole = [spans for spans in traces if {"handoff", "decode"} <= {span.name for span in spans}]
    return [
        spans for spans in whole if len({span.instance for span in spans if span.service == "livescale-worker"}) > 1
    ]


async def kill(site: ScalingSystem, speakers: set[str]) -> str:
    [victim] = speakers
    await site.signal(victim, signal.SIGKILL)
    site.watch.lose(victim)
    return victim
