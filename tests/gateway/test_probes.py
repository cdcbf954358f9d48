"""Probes say what is missing, and the metrics of many processes are one valid exposition."""

from prometheus_client.parser import text_string_to_metric_families

from livescale.services.gateway.probes import merge_expositions
from tests.gateway.conftest import ServedGateway

A = """# HELP livescale_bus_messages_total Messages.
# TYPE livescale_bus_messages_total counter
livescale_bus_messages_total{outcome="published"} 3.0
# HELP vllm:time_to_first_token_seconds TTFT.
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="w1",le="1.0",model_name="m"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="w1",le="+Inf",model_name="m"} 1.0
vllm:time_to_first_token_seconds_count{engine="w1",model_name="m"} 1.0
vllm:time_to_first_token_seconds_sum{engine="w1",model_name="m"} 0.25
# TYPE free gauge
free 1.0
"""
B = A.replace('"w1"', '"w2"').replace("# TYPE free gauge", "# TYPE free counter")


def parsed(text: bytes) -> dict[str, list[tuple[str, dict[str, str], float]]]:
    families = list(text_string_to_metric_families(text.decode()))
    assert len({family.name for family in families}) == len(families)
    return {family.name: [(one.name, dict(one.labels), one.value) for one in family.samples] for family in families}


def test_families_are_merged_and_samples_name_their_process() -> None:
    text, unreadable = merge_expositions({"b": B, "a": A})
    families = parsed(text)
    assert unreadable == []
    assert families["livescale_bus_messages"] == [
        ("livescale_bus_messages_total", {"outcome": "published", "process": "a"}, 3.0),
        ("livescale_bus_messages_total", {"outcome": "published", "process": "b"}, 3.0),
    ]
    histogram = families["vllm:time_to_first_token_seconds"]
    assert [labels["engine"] for _, labels, _ in histogram] == ["w1"] * 4 + ["w2"] * 4
    assert all("process" not in labels for _, labels, _ in histogram)
    assert text.decode().count("# TYPE vllm:time_to_first_token_seconds histogram") == 1


def test_a_family_of_another_type_is_left_out_and_bad_text_named() -> None:
    text, unreadable = merge_expositions({"a": A, "b": B, "c": "free{ 1"})
    assert parsed(text)["free"] == [("free", {"process": "a"}, 1.0)]
    assert unreadable == ["c"]


async def test_the_gateways_metrics_are_there_at_zero_and_count(served: ServedGateway) -> None:
    async def values() -> dict[str, float]:
        async with served.http.get(f"{served.url}/metrics") as answer:
            assert answer.headers["content-type"].startswith("text/plain; version=")
            families = parsed(await answer.read())
        return {
            name
            + "".join(f" {value}" for label, value in sorted(labels.items()) if label not in ("process", "le")): value
            for samples in families.values()
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
    assert before["vllm:num_requests_running worker-1 tiny"] == 3
    await served.client.completions.create(model="tiny", prompt="abc", max_tokens=4)
    after = await values()
    assert after["livescale_gateway_requests_total /v1/completions 200"] == 1
    assert after["livescale_gateway_time_to_first_token_seconds_count tiny"] == 1
    assert after["livescale_gateway_time_between_tokens_seconds_count tiny"] == 3
    assert after["livescale_gateway_held tiny"] == after["livescale_gateway_streams"] == 0


async def test_a_process_that_does_not_answer_is_left_out(served: ServedGateway) -> None:
    assert served.cluster.members[0].id == "router-0"
    async with served.http.get(f"{served.url}/metrics") as answer:
        text = await answer.text()
    assert answer.status == 200
    assert 'process="gateway-0"' in text
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
