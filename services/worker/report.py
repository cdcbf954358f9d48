"""What a worker says of itself in its heartbeats."""

from msgspec import structs

from livescale.services.worker.deployment import Deployment
from livescale.services.worker.resources import Resources
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.messages.membership import Holding, PeerTraffic, WorkerReport
from livescale.shared.process.run import World


def make_report(
    world: World, epoch: int, settings: WorkerSettings, device: str, resources: Resources, deployment: Deployment
) -> WorkerReport:
    """Return the state of the worker, and what it has and does where it is not spare."""
    instance = deployment.instance
    common = WorkerReport(
        id=world.info.id,
        epoch=epoch,
        state=instance.lifecycle.state.value,
        arena_bytes=settings.arena_bytes,
        device=device,
        host=world.host,
        engine=settings.engine,
        paths=resources.paths.by_peer,
        flows_out=deployment.flows_out,
        parked=deployment.parameters.parked,
        traffic=_traffic(resources),
    )
    assignment = instance.lifecycle.assignment
    if assignment is None:
        return common
    prefill, load, pipelines = deployment.disaggregation.prefill, instance.serving.load(), deployment.pipelines
    manifest = assignment.manifest
    return structs.replace(
        common,
        model=assignment.model,
        plan_id=assignment.plan_id,
        version=manifest.version,
        instance=assignment.instance,
        role=assignment.role,
        rank=assignment.rank,
        holding=Holding(
            model=assignment.model,
            version=manifest.held_as,
            ready=sorted(instance.lifecycle.ready),
            total=len(manifest.blocks),
        ),
        load=load and structs.replace(load, kv_tokens_per_second=prefill.tokens_per_second),
        helping=deployment.source.helping,
        live_layers=deployment.live_layers,
        live_waiting=deployment.live_waiting,
        handed_over=deployment.live.handed_over,
        kv_blocks=deployment.kv_blocks,
        pipeline=pipelines.pipeline,
        stage=pipelines.span,
        kv_way=pipelines.kv_way,
        sending_kv=len(prefill),
    )


def _traffic(resources: Resources) -> list[PeerTraffic]:
    rates = resources.meter.rates
    return [PeerTraffic(peer=peer, sent=one.sent, received=one.received) for peer, one in rates.items()]
