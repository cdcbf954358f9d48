"""The seconds of instances are counted by model and role, without gaps and without overlap."""

from livescale.services.worker.instance.seconds import InstanceSeconds
from livescale.shared.process.telemetry import Telemetry


def test_time_counts_for_what_the_worker_was_used_for_meanwhile() -> None:
    telemetry = Telemetry("worker", "worker-0")
    seconds = InstanceSeconds(telemetry)
    seconds.note(None, None, 10.0)
    seconds.note("m", "prefill", 11.0)
    seconds.note("m", "prefill", 13.0)
    seconds.note("m", "decode", 14.5)
    seconds.note(None, None, 20.0)
    seconds.note("m", "prefill", 50.0)
    told = telemetry.exposition()
    assert 'livescale_worker_instance_seconds_total{model_name="m",role="prefill"} 3.5' in told
    assert 'livescale_worker_instance_seconds_total{model_name="m",role="decode"} 5.5' in told
