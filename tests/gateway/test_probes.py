"""Probes say what is missing; a gateway's metrics are its own, and those of all processes are on request."""

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.gateway.conftest import ServedGateway


def parsed(text: bytes) -> list[tuple[str, dict[str, str], float]]:
    families = text_string_to_metric_families(text.decode())
    return [(one.name, dict(one.labels), one.value) for family in families for one in family.samples]


async def test_the_gateways_metrics_are_there_at_zero_and_count(served: ServedGateway) -> None:
    async def values() -> dict[str, float]:
        async with served.http.get(f"{served.url}/metrics") as answer:
            assert answer.headers["content-type"].startswith("text/plain; version=")
            samples = parsed(await answer.read())
        return {
            name + "".join(f" {value}" for label, value in sorted(labels.items()) if label != "le"): value
            for name, labels, value in samples
        }

    await served.get("/v1/models")
    before = await values()
    for name in (
        "livescale_gateway_requests_total /v1/completions 200",
        "livescale_gateway_rejections_total queue_full",
        "livescale_gateway_held tiny",
        "livescale_gateway_time_to_first_token_seconds_count tiny",
        "livescale_gateway_disconnects_total",
    ):
        assert before[name] == 0, name
    assert not [name for name in before if name.startswith("vllm:")]
    await served.client.completions.create(model="tiny", prompt="abc", max_tokens=4)
    after = await values()
    assert after["livescale_gateway_requests_total /v1/completions 200"] == 1
    assert after["livescale_gateway_time_to_first_token_seconds_count tiny"] == 1
    assert after["livescale_gateway_time_between_tokens_seconds_count tiny"] == 3
    assert after["livescale_gateway_held tiny"] == after["livescale_gateway_streams"] == 0


async def test_all_metrics_are_those_of_every_process_that_answers(served: ServedGateway) -> None:
    assert served.cluster.members[0].id == "router-0"
    await served.get("/v1/models")
    async with served.http.get(f"{served.url}/metrics/all") as answer:
        text = await answer.text()
    assert answer.status == 200
    assert 'livescale_gateway_streams{process="gateway-0"} 0.0' in text
    assert 'vllm:num_requests_running{engine="worker-1",model_name="tiny"} 3.0' in text
    assert "router-0" not in text


async def test_probes_say_what_is_missing(served: ServedGateway) -> None:
    assert await served.get("/live") == (200, {"status": "ok"})
    assert (await served.get("/version"))[1] == {"version": "0.1.0"}
    await served.get("/v1/models")  # asks the registry
    assert (await served.get("/health"))[0] == 200
    served.cluster.members.clear()
    assert await served.get("/ready") == (
        503,
        {"status": "unavailable", "bus": True, "router": False, "models": ["tiny"], "reason": "no router is alive"},
    )
    served.broker.down()
    assert (await served.get("/health"))[1]["reason"] == "the bus is disconnected"
    assert (await served.get("/live"))[0] == 200
    served.broker.up()


async def test_models_are_listed_with_their_state(served: ServedGateway) -> None:
    models = [model async for model in served.client.models.list()]
    assert [model.id for model in models] == ["tiny"]
    one = await served.client.models.retrieve("tiny")
    assert one.model_dump()["livescale"] == {"state": "ready", "instances": 1, "error": None}
    assert one.model_dump()["max_model_len"] == 256
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await served.client.models.retrieve("other")
