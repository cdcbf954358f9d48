"""vLLM's families, at zero from the start and right after a request."""

from prometheus_client.parser import text_string_to_metric_families

from livescale.services.worker.instance.metrics import WorkerMetrics
from livescale.services.worker.scheduling.batch import Batch, ScheduledChunk
from livescale.shared.messages.membership import EngineLoad
from livescale.shared.messages.requests import Submit, Tokens
from livescale.shared.process.telemetry import Telemetry

LOAD = EngineLoad(
    waiting_requests=1,
    waiting_tokens=7,
    running_requests=2,
    max_requests=16,
    kv_blocks_used=25,
    kv_blocks_total=100,
    kv_block_tokens=16,
)
REQUEST = Submit(request_id="req-1", model="m", gateway="gateway-0", prompt=[1, 2, 3], deadline=100.0)


def values(telemetry: Telemetry) -> dict[str, float]:
    """By name without the prefix, with the reason where there is one; buckets left out."""
    found = {}
    for family in text_string_to_metric_families(telemetry.exposition()):
        for name, labels, value, *_ in family.samples:
            if name.startswith("vllm:") and "le" not in labels:
                assert (labels["model_name"], labels["engine"]) == ("m", "worker-1")
                found[name.removeprefix("vllm:") + labels.get("finished_reason", "")] = value
    return found


def served(load: EngineLoad | None = None) -> tuple[Telemetry, WorkerMetrics]:
    telemetry = Telemetry("worker", "worker-1")
    metrics = WorkerMetrics(telemetry, "worker-1")
    metrics.serve("m", lambda: load)
    return telemetry, metrics


def test_every_family_is_there_at_zero_once_a_model_is_served() -> None:
    found = values(served()[0])
    assert set(found.values()) == {0.0}
    assert {
        *("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc", "num_preemptions_total"),
        *("prompt_tokens_total", "generation_tokens_total", "prefix_cache_queries_total", "prefix_cache_hits_total"),
        *(f"request_success_total{reason}" for reason in ("stop", "length", "cancelled", "deadline", "error")),
        *("time_to_first_token_seconds_count", "inter_token_latency_seconds_sum", "e2e_request_latency_seconds_count"),
        *(f"request_{phase}_time_seconds_count" for phase in ("queue", "prefill", "decode", "inference")),
        *("request_prompt_tokens_count", "request_generation_tokens_count"),
        *("request_max_num_generation_tokens_count", "request_time_per_output_token_seconds_count"),
    } <= set(found)


def test_preemptions_are_counted() -> None:
    telemetry, metrics = served()
    chunk = ScheduledChunk("req-1", (1,), start=3, blocks=range(1), decode=True)
    metrics.stepped(Batch(step=1, chunks=(chunk,), preempted=("req-2", "req-3")), begun=12.0)
    assert values(telemetry)["num_preemptions_total"] == 2


def test_what_there_is_to_do_is_of_the_model_that_is_served_now() -> None:
    telemetry, metrics = served(LOAD)
    assert (values(telemetry)["num_requests_waiting"], values(telemetry)["kv_cache_usage_perc"]) == (1, 0.25)
    metrics.serve("another", lambda: None)
    text = telemetry.exposition()
    assert 'vllm:num_requests_waiting{engine="worker-1",model_name="another"} 0.0' in text
    assert 'vllm:num_requests_waiting{engine="worker-1",model_name="m"}' not in text


def test_the_cache_is_described_as_vllm_does() -> None:
    labels = 'block_size="16",engine="worker-1",model_name="m",num_gpu_blocks="100"'
    assert f"vllm:cache_config_info{{{labels}}} 1.0" in served(LOAD)[0].exposition()


def test_a_request_is_measured_from_admission_to_its_last_token() -> None:
    telemetry, metrics = served(LOAD)
    metrics.admitted(REQUEST, 10.0)
    prefill = ScheduledChunk("req-1", (1, 2, 3), start=0, blocks=range(1), decode=False)
    metrics.stepped(Batch(step=1, chunks=(prefill,)), begun=12.0)
    for index, now in enumerate((13.0, 13.5, 14.5)):
        finish = "length" if index == 2 else None
        row = Tokens(request_id="req-1", index=index, token_ids=[5], finish_reason=finish)  # type: ignore[arg-type]
        metrics.emitted([row], now)
    found = values(telemetry)
    expected = {
        "num_requests_waiting": 1,
        "num_requests_running": 2,
        "kv_cache_usage_perc": 0.25,
        "prompt_tokens_total": 3,
        "generation_tokens_total": 3,
        "request_success_totallength": 1,
        "request_success_totalstop": 0,
        "request_queue_time_seconds_sum": 2.0,
        "request_prefill_time_seconds_sum": 1.0,
        "time_to_first_token_seconds_sum": 3.0,
        "inter_token_latency_seconds_sum": 1.5,
        "inter_token_latency_seconds_count": 2,
        "request_decode_time_seconds_sum": 1.5,
        "request_inference_time_seconds_sum": 2.5,
        "e2e_request_latency_seconds_sum": 4.5,
        "request_prompt_tokens_sum": 3,
        "request_generation_tokens_sum": 3,
        "request_max_num_generation_tokens_sum": 3,
        "request_time_per_output_token_seconds_sum": 0.75,
        "request_time_per_output_token_seconds_count": 1,
    }
    assert {name: found[name] for name in expected} == expected


def test_of_a_request_that_another_worker_prefilled_the_gap_to_its_next_token_counts_and_no_first_token() -> None:
    telemetry, metrics = served()
    metrics.taken_over(REQUEST, now=10.0, waited=3.0, silent=0.5)
    chunk = ScheduledChunk("req-1", (1,), start=3, blocks=range(1), decode=True)
    metrics.stepped(Batch(step=1, chunks=(chunk,)), begun=10.0)
    metrics.emitted([Tokens(request_id="req-1", index=1, token_ids=[5], finish_reason="length")], now=11.0)
    found = values(telemetry)
    assert (found["time_to_first_token_seconds_count"], found["request_queue_time_seconds_count"]) == (0, 0)
    assert found["inter_token_latency_seconds_sum"] == 1.5
    assert found["e2e_request_latency_seconds_sum"] == 4.0
