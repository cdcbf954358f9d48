"""Which targets of a scale out take requests while they load, whether that is needed, and which instances help. Pure.

BlitzScale's selection by necessity (5.2): what a stop costs depends on how long parameters load and on the load
meanwhile.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from math import sqrt

from livescale.services.planner.orders import Orders
from livescale.services.planner.plans.execution_pipelines import pipeline_ready, team_pipelines
from livescale.services.planner.plans.plan import TransferPlan
from livescale.services.planner.running_scale import NodeCommand
from livescale.shared.messages.membership import LeaseChanged, WorkerReport
from livescale.shared.messages.scaling import Decision
from livescale.shared.messages.transfers import LiveMode, Plan, PlannedPipeline

AT_ONCE = 8  # targets that helpers know, for each new one that they are told of at once
SLOWEST = 1e-6  # tokens a second; a lower rate counts as not measured, and is not divided by
CHANCE = 2.0  # standard deviations; more than that arrives in one scale of forty
MADE_OF = (
    *("waiting_tokens", "waiting_requests", "arriving_tokens_per_second", "prefill_tokens_per_second"),
    *("instances", "loading"),
)


class LiveHelp:
    """Which serving instances take requests over from the live targets of a plan.

    There are as many helpers as targets that need help: of the instances that serve the same version, those with the
    fewest KV blocks in use. Any of them takes from any target. A helper stays one while it serves, however full it
    becomes. A target that is whole still has a queue, and says itself when it needs no more help.
    """

    def __init__(self, plan: Plan, workers: Iterable[WorkerReport]) -> None:
        """`workers` are the last reports of all workers, by id."""
        self._plan = plan
        # The members of a pipeline are helped by each other alone.
        self._targets = plan.live_targets if plan.live != "pipeline" else []
        self._serving: dict[str, WorkerReport] = {}
        self._loading: set[str] = set()  # targets that have begun
        self._told: dict[str, list[str]] = {}  # targets, by helper
        self._targets_told: list[str] = []  # to all helpers, each of which leaves itself out
        self.changed = False  # something may have to be said
        for report in workers:
            self.on_report(report)

    def loads(self, target: str) -> None:
        """Note that a target has begun to load. It may be helped from now on; before, it would say that it needs
        none."""
        self.changed = self.changed or target not in self._loading
        self._loading.add(target)

    def on_report(self, report: WorkerReport) -> None:
        """Note whether a worker serves and may help. One that refused may be asked again once it reports."""
        if report.plan_id == self._plan.id:
            self.loads(report.id)
        served = (report.model, report.version) == (self._plan.model, self._plan.version)
        if served and report.state == "serving" and report.rank == 0:
            self.changed = self.changed or report.id not in self._serving
            self._serving[report.id] = report
        else:
            self.forget(report.id)

    def on_lease(self, change: LeaseChanged) -> None:
        """Forget a worker that is dead, unless a newer process has taken its place."""
        known = self._serving.get(change.id)
        if change.state == "dead" and known is not None and known.epoch <= change.epoch:
            self.forget(change.id)

    def forget(self, worker: str) -> None:
        """Take a worker that refused, or serves no more, off the helpers until it reports that it serves."""
        self._serving.pop(worker, None)
        self.changed = self._told.pop(worker, None) is not None or self.changed

    def tell(self, orders: Orders, failed: AbstractSet[str], *, more_come: bool) -> Iterator[NodeCommand]:
        """Yield what has to be said so that all live targets are helped, but for those that have `failed`.

        Targets begin one after another, and each new one is told to all helpers. While `more_come`, helpers of many
        hear of several at once: else hundreds would be told of hundreds, hundreds of times.
        """
        targets = [one for one in self._targets if one in self._loading and one not in failed]
        known = [one for one in self._targets_told if one not in failed]
        self.changed = more_come and 0 < len(targets) - len(known) < len(known) // AT_ONCE
        if self.changed:
            targets = known
        chosen = dict.fromkeys(self._choose(len(targets)))
        same = targets == self._targets_told
        for worker in dict.fromkeys([*self._told, *chosen]):
            if same and worker in chosen and worker in self._told:
                continue  # there may be a thousand helpers, of a thousand targets each
            wanted = [target for target in targets if target != worker] if worker in chosen else []
            if self._told.get(worker, []) != wanted:
                self._told[worker] = wanted
                yield orders.help(self._serving[worker], wanted)
            if not wanted:
                self._told.pop(worker, None)
        self._targets_told = targets

    def _choose(self, count: int) -> list[str]:
        new = sorted((worker for worker in self._serving if worker not in self._told), key=self._fullness)
        return [*self._told, *new][:count]

    def _fullness(self, worker: str) -> tuple[float, str]:
        load = self._serving[worker].load
        return float("inf") if load is None else load.kv_blocks_used, worker

    def broken(self) -> Iterator[str]:
        """Yield what does not hold: every helper serves."""
        yield from (f"{worker} helps, and does not serve" for worker in self._told if worker not in self._serving)


def choose_live(
    mode: LiveMode, plans: Sequence[TransferPlan], teams: Sequence[Sequence[str]], *, every_hop: bool
) -> tuple[list[str], list[str]]:
    """Choose the targets that take requests before they are whole, and say why.

    By default they are the last of each chain: what a target sends on would be in the way of what serving sends
    (BlitzScale 5.1). `plans` has one plan for each rank of the new instances, and `teams` the workers of each instance.
    The first rank of an instance takes its requests.
    """
    if mode == "off":
        return [], []
    if mode == "pipeline":
        return choose_members(plans, teams)
    live = [team[0] for team in teams if every_hop or _sends_nothing(team, plans)]
    if not live:
        return [], ["no target takes requests before it is whole: every target sends parameters on"]
    why = "every target does so" if every_hop else "nothing is sent on from there"
    return live, [f"requests run at {', '.join(live)} from the first layer on, in the mode {mode}: {why}"]


def _sends_nothing(team: Sequence[str], plans: Sequence[TransferPlan]) -> bool:
    return all(worker in plan.tails for worker, plan in zip(team, plans, strict=True))


def choose_members(plans: Sequence[TransferPlan], teams: Sequence[Sequence[str]]) -> tuple[list[str], list[str]]:
    """Choose the targets that take requests together in execution pipelines, and say why. An instance with several
    ranks is represented by its first one."""
    pipelines = team_pipelines([plan.pipelines for plan in plans], teams)
    if not pipelines:
        alone = all(len(nodes) == 1 for plan in plans for nodes in plan.pipelines)
        why = (
            "there is no other target to make a pipeline with"
            if alone
            else "the plans of its ranks make different ones"
        )
        return [], [f"no target takes requests before it is whole: {why}"]
    told = "; ".join(", ".join(nodes) for nodes in pipelines)
    return [node for nodes in pipelines for node in nodes], [
        f"these serve as soon as they have all between them: {told}"
    ]


def foresee_pipelines(
    plans: Sequence[TransferPlan],
    teams: Sequence[Sequence[str]],
    ready: Mapping[str, Mapping[int, float]],
    *,
    tied: bool,
) -> list[PlannedPipeline]:
    """Return the pipelines of at least two instances, and when each should be ready.

    `teams` are the workers of each instance. `ready` are the predicted times by target and block, or empty.
    """
    return [
        PlannedPipeline(members=list(nodes), predicted=pipeline_ready(nodes, ready, tied=tied) if ready else None)
        for nodes in team_pipelines([plan.pipelines for plan in plans], teams)
    ]


@dataclass(frozen=True)
class PrefillDemand:
    """The load of a model's prefill in tokens.

    `waiting` tokens wait, `arriving` come each second, and a request brings `prompt` of them. `serving` instances
    prefill `rate` tokens a second each.
    """

    waiting: float
    arriving: float
    rate: float
    serving: int
    prompt: float = 0.0

    def at_worst(self, seconds: float) -> "PrefillDemand":
        """Return the demand with as many arrivals as chance may well bring within these seconds."""
        spread = CHANCE * sqrt(self.prompt * self.arriving / seconds) if seconds > 0 else 0.0
        return replace(self, arriving=self.arriving + spread)


def is_needed(decision: Decision, joining: Collection[float], slo: float) -> tuple[bool, str]:
    """Say whether the targets of a scale should be live, and why.

    `joining`: in how many seconds each of them is whole. If that or the load is not known, they are live, which costs
    no token. `slo`: the longest that a first token may take, in seconds.
    """
    demand = read_demand(decision)
    if not joining:
        return True, "they are live, as it is not known how long they load: what links carry is not known"
    if decision.rule == "decode":
        return True, "they are live, as instances lack KV blocks or slots, and when some come free is not known"
    if demand is None:
        return True, "they are live, as the decision does not tell what waits, how fast more comes and how fast it goes"
    worst = demand.at_worst(max(joining))
    wait = longest_wait(worst, joining)
    load = (
        f"({demand.waiting:.0f} prompt tokens wait, {demand.arriving:.0f}/s come and by chance {worst.arriving:.0f}/s, "
        f"{demand.serving} instances take {demand.rate:.0f}/s each)"
    )
    if wait > slo:
        why = f"a first token would take up to {wait:.2f} s, more than the SLO of {slo:g} s"
        return True, f"they are live: if they stopped the world for {max(joining):.2f} s, {why} {load}"
    why = f"a first token takes at most {wait:.2f} s, within the SLO of {slo:g} s"
    return False, f"no target is live: although they stop the world for {max(joining):.2f} s, {why} {load}"


def read_demand(decision: Decision) -> PrefillDemand | None:
    """Return the demand by which the monitor decided; None if the decision does not tell all of it, as with scales by
    hand."""
    known = [value for name in MADE_OF if (value := decision.inputs.get(name)) is not None]
    if len(known) < len(MADE_OF):
        return None
    waiting, requests, arriving, rate, instances, loading = known
    prompt = waiting / requests if requests else 0.0
    return PrefillDemand(waiting, arriving, rate, round(instances - loading), prompt) if rate > SLOWEST else None


def longest_wait(demand: PrefillDemand, joining: Collection[float]) -> float:
    """Return the longest wait, in seconds, of requests that wait now or come before the last instance joins.

    Requests are served in the order in which they come. Tokens are a fluid: its level rises as prompts come, and falls
    faster with every instance that joins. Over the moments at which a prompt may come, the wait is therefore made of
    straight lines, and the longest wait is at one of their ends.
    """
    corners, served, since = [], 0.0, 0.0
    for others, at in enumerate(sorted(joining)):
        served += (at - since) * (demand.serving + others) * demand.rate
        since = at
        corners.append((served, at))
    moments = [0.0, since]
    if demand.arriving > 0:
        moments += [(tokens - demand.waiting) / demand.arriving for tokens, _ in corners]
    waits = [
        _served_at(demand.waiting + demand.arriving * moment, demand, corners) - moment
        for moment in moments
        if 0.0 <= moment <= since
    ]
    return max(0.0, *waits)


def _served_at(tokens: float, demand: PrefillDemand, corners: Collection[tuple[float, float]]) -> float:
    """Return when so many tokens have been served. `corners`: for each join, the tokens served by then and its time."""
    instances, before, since = demand.serving, 0.0, 0.0
    for served, at in corners:
        if tokens < served:
            break
        instances, before, since = instances + 1, served, at
    return since + (tokens - before) / (instances * demand.rate)
