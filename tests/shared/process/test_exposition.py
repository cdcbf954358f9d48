"""The metrics of many processes are one valid exposition."""

from prometheus_client.parser import text_string_to_metric_families

from livescale.shared.bus.contract import Context, Endpoint, ServiceInfo
from livescale.shared.messages.membership import AskMetrics, LeaseState, Member, MetricsText
from livescale.shared.process.exposition import ask_expositions, merge_expositions
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import METRICS
from tests.clocks import LoopClock

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


def member(id: str, lease: LeaseState = "alive") -> Member:
    return Member(service="worker", id=id, pid=1, host="box", epoch=1, lease=lease)


def test_processes_that_are_dead_or_silent_are_left_out() -> None:
    async def main() -> dict[str, str]:
        broker = LocalBroker(LoopClock(epoch=0.0))
        for id in ("a", "b"):

            async def answer(message: AskMetrics, context: Context, id: str = id) -> MetricsText:
                return MetricsText(text=f"metrics of {id}")

            await broker.connect().serve(ServiceInfo("worker", id, "test"), [Endpoint(METRICS, answer, {"id": id})])
        return await ask_expositions(broker.connect(), [member("a"), member("b", "dead"), member("c", "suspect")])

    assert virtual_time.run(main(), limit_seconds=10) == {"a": "metrics of a"}
