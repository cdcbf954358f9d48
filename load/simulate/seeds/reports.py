"""What the processes of a simulated cluster said of themselves last."""

from livescale.load.simulate.cluster import VirtualCluster
from livescale.shared.bus.codec import decode
from livescale.shared.messages.membership import Holding, HostReport, QueueLoad, Report, RouterReport, WorkerReport
from livescale.shared.simulation.listeners import Listener
from livescale.shared.subjects import HEARTBEAT


class LastReports:
    """The last heartbeat of every process, decoded where somebody wants to know."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self._cluster = cluster
        self._raw: dict[str, bytes] = {}
        cluster.broker.watchers.add(Listener("hb.>", "", lambda subject, data, *_: self._note(subject, data)))

    def of_running(self) -> dict[str, Report]:
        """The last reports of the processes that run, by id."""
        named = ((subject.rpartition(".")[2], data) for subject, data in sorted(self._raw.items()))
        return {
            id: decode(HEARTBEAT.type, bytes(data), json=True) for id, data in named if id in self._cluster.processes
        }

    def queues(self) -> list[QueueLoad]:
        """What the routers that run count of each model."""
        told = self.of_running().values()
        return [queue for report in told if isinstance(report, RouterReport) for queue in report.queues]

    def _note(self, subject: str, data: bytes) -> None:
        self._raw[subject] = data


def copies(reports: dict[str, Report]) -> set[str]:
    """The models of which all is in memory: at a host, at a worker, or at workers that have a shard each."""
    found, shards = set[str](), dict[tuple[str, int], set[int]]()
    for report in reports.values():
        match report:
            case HostReport():
                found.update(one.model for one in report.holdings if one.is_whole)
            case WorkerReport(holding=Holding() as holding, version=str() as version) if holding.is_whole:
                _, _, part = version.partition(".")
                shard, _, of = part.partition("of")
                shards.setdefault((holding.model, int(of or 1)), set()).add(int(shard or 0))
    return found | {model for (model, count), held in shards.items() if len(held) == count}
