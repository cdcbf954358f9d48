"""Who helps the targets of a scale that go live: instances that serve the same version take requests over. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

from livescale.services.planner.orders import Orders
from livescale.services.planner.plans.pipelines import team_pipelines
from livescale.services.planner.plans.plan import TransferPlan
from livescale.services.planner.scales import Command
from livescale.shared.messages.membership import LeaseChanged, WorkerReport
from livescale.shared.messages.transfers import LiveMode, Plan


class LiveHelp:
    """As many help as there are targets to help: of those that serve, who has the fewest KV blocks in use.

    Any of them takes from any target. Who helps stays a helper while it serves, however full it becomes. A target that
    is whole still has a queue: it says itself when it needs no help any more.
    """

    def __init__(self, plan: Plan, workers: Iterable[WorkerReport]) -> None:
        """`workers`: what they last reported."""
        self._plan = plan
        self._targets = plan.live_targets if plan.live != "pipeline" else []  # which are nobody's but their members'
        self._serving: dict[str, WorkerReport] = {}
        self._loading: set[str] = set()  # targets that have begun
        self._told: dict[str, list[str]] = {}  # targets, by helper
        self.changed = False  # something may have to be said
        for report in workers:
            self.on_report(report)

    def loads(self, target: str) -> None:
        """From now on it may be helped: before, it would say that it needs none."""
        self.changed = self.changed or target not in self._loading
        self._loading.add(target)

    def on_report(self, report: WorkerReport) -> None:
        """Who serves may be asked, and again after it refused."""
        if report.plan_id == self._plan.id:
            self.loads(report.id)
        served = (report.model, report.version) == (self._plan.model, self._plan.version)
        if served and report.state == "serving" and report.rank == 0:
            self.changed = self.changed or report.id not in self._serving
            self._serving[report.id] = report
        else:
            self.forget(report.id)

    def on_lease(self, change: LeaseChanged) -> None:
        known = self._serving.get(change.id)
        if change.state == "dead" and known is not None and known.epoch <= change.epoch:
            self.forget(change.id)

    def forget(self, worker: str) -> None:
        """It refused, or serves no more: it is nobody's helper until it says that it serves."""
        self._serving.pop(worker, None)
        self.changed = self._told.pop(worker, None) is not None or self.changed

    def tell(self, orders: Orders, failed: AbstractSet[str]) -> Iterator[Command]:
        """What is left to be said so that the live targets are helped, but for those that have `failed`."""
        self.changed = False
        targets = [one for one in self._targets if one in self._loading and one not in failed]
        chosen = self._choose(len(targets))
        for worker in [*self._told, *(worker for worker in chosen if worker not in self._told)]:
            wanted = [target for target in targets if target != worker] if worker in chosen else []
            if self._told.get(worker, []) != wanted:
                self._told[worker] = wanted
                yield orders.help(self._serving[worker], wanted)
            if not wanted:
                self._told.pop(worker, None)

    def _choose(self, count: int) -> list[str]:
        new = sorted((worker for worker in self._serving if worker not in self._told), key=self._fullness)
        return [*self._told, *new][:count]

    def _fullness(self, worker: str) -> tuple[float, str]:
        load = self._serving[worker].load
        return float("inf") if load is None else load.kv_blocks_used, worker

    def broken(self) -> Iterator[str]:
        """What does not hold: whoever helps serves."""
        yield from (f"{worker} helps, and does not serve" for worker in self._told if worker not in self._serving)


def choose_live(
    mode: LiveMode, plans: Sequence[TransferPlan], teams: Sequence[Sequence[str]], *, every_hop: bool
) -> tuple[list[str], list[str]]:
    """Which targets take requests before they are whole, and why these. By default the last of each chain: what is
    sent on would be in the way of what serving sends (BlitzScale 5.1).

    `plans`: one for each rank of the new instances, which are the `teams`. Of several ranks the first takes requests.
    """
    if mode == "off":
        return [], []
    if mode == "pipeline":
        return choose_members(plans, teams)
    live = [team[0] for team in teams if every_hop or _sends_nothing(team, plans)]
    if not live:
        return [], ["nobody takes requests before it is whole: every target sends parameters on"]
    why = "every target does" if every_hop else "they send nothing on"
    return live, [f"{', '.join(live)} run requests from their first layer on, in the mode {mode}: {why}"]


def _sends_nothing(team: Sequence[str], plans: Sequence[TransferPlan]) -> bool:
    return all(worker in plan.tails for worker, plan in zip(team, plans, strict=True))


def choose_members(plans: Sequence[TransferPlan], teams: Sequence[Sequence[str]]) -> tuple[list[str], list[str]]:
    """Targets that take requests together, and why. Of several ranks the first."""
    pipelines = team_pipelines([plan.pipelines for plan in plans], teams)
    if not pipelines:
        alone = all(len(nodes) == 1 for plan in plans for nodes in plan.pipelines)
        why = (
            "there is no other target to make a pipeline with"
            if alone
            else "the plans of its ranks make different ones"
        )
        return [], [f"nobody takes requests before it is whole: {why}"]
    told = "; ".join(", ".join(nodes) for nodes in pipelines)
    return [node for nodes in pipelines for node in nodes], [
        f"these serve as soon as they have all between them: {told}"
    ]
