"""The processes that are just now at what a fault is to meet."""

from livescale.load.simulate.cluster import VirtualCluster
from livescale.load.simulate.seeds.history import Moment
from livescale.load.simulate.seeds.looks import coming_kv, offices, workers
from livescale.services.host.actor import HostService


def processes_that_are(when: Moment, cluster: VirtualCluster) -> list[str]:
    """The workers that run and are in this state; of those that send parameters hosts, too, and hosts that read. Where
    requests wait it is the router in office that does. A worker that is emptying drains, and its requests move away, to
    workers that are taking over."""
    if when == "queueing":
        return [id for id, office in offices(cluster) if any(office.policy.depths().values())]
    if when == "reading":
        readers = {id: one.actor for id, one in cluster.processes.items() if isinstance(one.actor, HostService)}
        return [id for id, host in readers.items() if any(not held.is_whole for _, held in host._cache.items())]
    deployments = {id: worker._deployment for id, worker in sorted(workers(cluster))}
    if when == "sending":
        hosts = [id for id, process in cluster.processes.items() if isinstance(process.actor, HostService)]
        sending = [id for id in hosts if getattr(cluster.processes[id].actor, "_outgoing", ())]
        return sending + [id for id, deployment in deployments.items() if deployment.flows_out]
    if when == "moving KV":
        pairs = [(one.asked.prefill.id, id) for id, each in deployments.items() for one in coming_kv(each)]
        return sorted({id for pair in pairs for id in pair} & deployments.keys())
    draining = [id for id, one in deployments.items() if one.lifecycle.state == "draining"]
    if when == "emptying":
        return [id for id in draining if len(deployments[id].disaggregation.prefill)]
    if when == "taking over":
        takers = {id: {one.asked.prefill.id for one in coming_kv(each)} for id, each in deployments.items()}
        return [id for id, givers in takers.items() if givers.intersection(draining)]
    if when != "handing over":
        return [id for id, deployment in deployments.items() if deployment.lifecycle.state == when]
    coming = [hand_off for one in deployments.values() for hand_off in one.source._receiving.values()]
    return [id for id in deployments if any(hand_off.needs(id) for hand_off in coming)]
