"""Whether new instances have to be live: would a stop until they are whole break the SLO? Pure.

BlitzScale's selection by necessity: what a stop costs depends on how long parameters load and on the load meanwhile.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import sqrt

from livescale.shared.messages.scaling import Decision

SLOWEST = 1e-6  # tokens/s; less says nothing that could be divided by
CHANCE = 2.0  # standard deviations: more than this come in one scale of forty
MADE_OF = (
    *("waiting_tokens", "waiting_requests", "arriving_tokens_per_second", "prefill_tokens_per_second"),
    *("instances", "loading"),
)


@dataclass(frozen=True)
class Demand:
    """Prompt tokens that wait, and that come a second, of which a request brings `prompt`; `serving` instances prefill
    `rate` tokens a second each."""

    waiting: float
    arriving: float
    rate: float
    serving: int
    prompt: float = 0.0

    def at_worst(self, seconds: float) -> "Demand":
        """As many come in that time as it may well be, where requests come by chance."""
        spread = CHANCE * sqrt(self.prompt * self.arriving / seconds) if seconds > 0 else 0.0
        return replace(self, arriving=self.arriving + spread)


def is_needed(decision: Decision, joining: Collection[float], slo: float) -> tuple[bool, str]:
    """Whether the targets of a scale should be live, and why. `joining`: in how many seconds each of them is whole.

    Where it is not known how long anybody would wait they are: it costs no token.
    """
    demand = read_demand(decision)
    if not joining:
        return True, "they are live, as it is not known how long they load: nobody says what links carry"
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
    return False, f"nobody is live: although they stop the world for {max(joining):.2f} s, {why} {load}"


def read_demand(decision: Decision) -> Demand | None:
    """From what the monitor decided; None where it does not say all, as with scales by hand."""
    known = [value for name in MADE_OF if (value := decision.inputs.get(name)) is not None]
    if len(known) < len(MADE_OF):
        return None
    waiting, requests, arriving, rate, instances, loading = known
    prompt = waiting / requests if requests else 0.0
    return Demand(waiting, arriving, rate, round(instances - loading), prompt) if rate > SLOWEST else None


def longest_wait(demand: Demand, joining: Collection[float]) -> float:
    """Of all who wait now or come before the last instance joins, in seconds; first come, first served.

    Tokens are a fluid: its level rises as prompts come and falls faster with every instance that joins. So a wait, over
    the moments at which one may come, is made of straight lines, and the longest is at one of their ends.
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


def _served_at(tokens: float, demand: Demand, corners: Collection[tuple[float, float]]) -> float:
    """When so many are. `corners`: at each join, how many have been by then."""
    instances, before, since = demand.serving, 0.0, 0.0
    for served, at in corners:
        if tokens < served:
            break
        instances, before, since = instances + 1, served, at
    return since + (tokens - before) / (instances * demand.rate)
