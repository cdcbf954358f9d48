"""What a process tells of itself as a NATS micro service, by ADR-32 of NATS."""

import json
from typing import Any

from livescale.shared.bus.calls import EndpointStats, ServedEndpoint
from livescale.shared.bus.contract import Call, Context, Endpoint, ServiceInfo
from livescale.shared.bus.services import VERBS, MicroEndpoint, MicroService
from livescale.shared.messages.registry import Named
from livescale.shared.runtime.clock import SystemClock

SAY: Call[Named, Named] = Call("svc.echo.say", Named, Named, queue=True, doc="says it again")
SUBJECT = "livescale.test.svc.echo.say"


async def echo(message: Named, context: Context) -> Named:
    return message


def service(stats: EndpointStats | None = None) -> MicroService:
    served = ServedEndpoint(Endpoint(SAY, echo), SystemClock(), stats or EndpointStats())
    info = ServiceInfo("echo", "echo-0", "says what it hears", "1.2.3")
    return MicroService(info, "2026-01-01T00:00:00Z", [MicroEndpoint(SUBJECT, "q", served)])


def told(verb: str, stats: EndpointStats | None = None) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(service(stats).answer(verb))
    return answer


def test_it_listens_for_all_services_for_its_own_and_for_itself() -> None:
    assert service().subjects() == {
        f"$SRV.{verb}{whom}": verb for verb in VERBS for whom in ("", ".echo", ".echo.echo-0")
    }


def test_every_answer_says_who_it_is_and_of_which_type() -> None:
    for verb in VERBS:
        answer = told(verb)
        assert answer["type"] == f"io.nats.micro.v1.{verb.lower()}_response"
        assert (answer["name"], answer["id"], answer["version"]) == ("echo", "echo-0", "1.2.3")


def test_its_endpoints_are_named_with_their_messages() -> None:
    info = told("INFO")
    assert info["description"] == "says what it hears"
    assert info["endpoints"] == [
        {
            "name": "say",
            "subject": SUBJECT,
            "queue_group": "q",
            "metadata": {"description": "says it again", "request": "Named", "reply": "Named"},
        }
    ]


def test_statistics_have_the_mean_time_and_none_before_the_first_request() -> None:
    [idle] = told("STATS")["endpoints"]
    assert (idle["num_requests"], idle["average_processing_time"]) == (0, 0)
    [busy] = told("STATS", EndpointStats(4, 1, "404: no", 1_000))["endpoints"]
    assert (busy["num_requests"], busy["num_errors"], busy["last_error"]) == (4, 1, "404: no")
    assert (busy["processing_time"], busy["average_processing_time"]) == (1_000, 250)
