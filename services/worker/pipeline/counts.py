"""What a worker counts of execution pipelines."""

from livescale.shared.process.telemetry import Telemetry


class PipelineCounts:
    """As who leads: steps. As any stage: what came from the one before, and what was filled."""

    def __init__(self, telemetry: Telemetry) -> None:
        counter = telemetry.counter
        self.steps = counter("livescale_worker_pipeline_steps_total", "Steps of pipelines that this worker led")
        self.broken = counter(
            "livescale_worker_broken_pipelines_total", "Pipelines that this worker led and that ended before their time"
        )
        self.in_flight = telemetry.gauge(
            "livescale_worker_pipeline_in_flight", "Steps under way in the pipeline that this worker leads"
        )
        self.received = counter(
            "livescale_worker_pipeline_bytes_total", "Bytes of activations that came from the stage before"
        )
        self.filled = counter(
            "livescale_worker_pipeline_filled_tokens_total",
            "Tokens whose KV this worker computed in all layers while the pipeline still ran",
        )
        self.moved = counter(
            "livescale_worker_pipeline_moved_tokens_total",
            "Tokens whose KV this worker got from the others of a pipeline, of the layers that these ran",
        )
        self.kv_lost = counter(
            "livescale_worker_pipeline_lost_kv_total",
            "Parts of KV of other workers of a pipeline that did not come, or came damaged",
        )
        self.hop_seconds = telemetry.histogram(
            "livescale_worker_pipeline_hop_seconds", "From hearing of a batch to its activation being here"
        )
