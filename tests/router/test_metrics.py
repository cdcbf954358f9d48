"""What the router tells of a request: its time in the queue, its scale, and each worker that was asked."""

from opentelemetry.trace import StatusCode

from livescale.services.router.effects import AdmitTo, FinishRequest
from livescale.services.router.metrics import RouterSpans
from livescale.shared.process.otlp import scale_traceparent, span_context
from livescale.shared.process.telemetry import Telemetry
from tests.router.examples import NOW, hear, policy, report, request
from tests.spans import CALLER, seconds, trace_id, traced


def admission(**more: object) -> AdmitTo:
    common = {"epoch": 1, "attempt": 0, "reason": "it is the only one", "since": NOW - 2.0}
    asked = request("r-1", traceparent=CALLER)
    return AdmitTo(worker="a", request=asked, **{**common, **more})  # type: ignore[arg-type]


def test_an_admission_is_a_queue_and_a_route() -> None:
    telemetry = Telemetry("router", "router-0")
    kept = traced(telemetry)
    RouterSpans(telemetry.spans).answered(admission(), asked=NOW, now=NOW + 0.5)
    queue, route = kept.get_finished_spans()
    assert (queue.name, seconds(queue)) == ("queue", (NOW - 2.0, NOW))
    assert (route.name, seconds(route)) == ("route", (NOW, NOW + 0.5))
    assert {trace_id(queue), trace_id(route)} == {CALLER[3:35]}
    assert (route.attributes or {})["livescale.worker.id"] == "a"
    assert (route.attributes or {})["livescale.route.reason"] == "it is the only one"
    assert list(queue.links) == []


def test_a_refused_admission_is_a_route_that_failed_and_the_request_still_waits() -> None:
    telemetry = Telemetry("router", "router-0")
    kept = traced(telemetry)
    RouterSpans(telemetry.spans).answered(admission(), asked=NOW, now=NOW + 0.5, code=409)
    [route] = kept.get_finished_spans()
    assert route.status.status_code is StatusCode.ERROR
    assert (route.attributes or {})["error.type"] == "409"


def test_a_request_that_waited_for_a_scale_links_to_it() -> None:
    telemetry = Telemetry("router", "router-0")
    kept = traced(telemetry)
    RouterSpans(telemetry.spans).answered(admission(scale="scale-1"), asked=NOW, now=NOW)
    queue, _ = kept.get_finished_spans()
    assert [link.context for link in queue.links] == [span_context(scale_traceparent("scale-1"))]


def test_a_request_whose_deadline_passes_in_the_queue_tells_so() -> None:
    telemetry, made = Telemetry("router", "router-0"), policy()
    kept = traced(telemetry)
    made.submit(request("r-1", traceparent=CALLER, deadline=NOW + 1), NOW)
    [effect] = made.expire(NOW + 1)
    assert isinstance(effect, FinishRequest)
    RouterSpans(telemetry.spans).finished(effect, NOW + 1)
    [queue] = kept.get_finished_spans()
    assert (queue.name, seconds(queue)) == ("queue", (NOW, NOW + 1))
    assert (queue.attributes or {})["error.type"] == "deadline"


def test_nothing_is_made_of_a_request_that_nobody_traces() -> None:
    telemetry = Telemetry("router", "router-0")
    kept = traced(telemetry)
    plain = AdmitTo("a", 1, request("r-1"), 0, "why", NOW)
    RouterSpans(telemetry.spans).answered(plain, asked=NOW, now=NOW)
    assert kept.get_finished_spans() == ()


def test_only_who_came_before_the_instance_took_requests_waited_for_its_scale() -> None:
    made = policy()
    made.submit(request("early"), NOW)
    hear(made, report("a", plan_id="scale-1"), NOW + 1)
    made.submit(request("late"), NOW + 2)
    effects = [effect for effect in made.dispatch(NOW + 2) if isinstance(effect, AdmitTo)]
    assert {effect.request.request_id: (effect.since, effect.scale) for effect in effects} == {
        "early": (NOW, "scale-1"),
        "late": (NOW + 2, None),
    }


def test_the_load_of_a_queue_names_the_trace_of_who_has_waited_longest() -> None:
    made = policy()
    made.submit(request("r-1", traceparent=CALLER), NOW)
    made.submit(request("r-2", traceparent="another", priority=-9), NOW + 1)
    assert [load.traceparent for load in made.loads(NOW + 2)] == [CALLER, None]
