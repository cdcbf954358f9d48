"""Flows that share links max-min fairly at every moment, as a fluid. Pure; all times are of one clock.

Rates are dealt anew only among flows that meet what changed, be it over other flows. In between, when a message is
through follows from its bytes and the rate.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from livescale.shared.links.fair_rates import fair_rates
from livescale.shared.topology.paths import Resource

NEVER = float("inf")


class FairMessage(Struct, eq=False):
    """A message with `left` bytes that have not passed all links yet; `through` is called when they have."""

    left: float
    through: Callable[[], None]


@dataclass(eq=False)
class SharedResource:
    """One direction of a link, and the flows that have something to send over it."""

    rate: float
    flows: dict["FairFlow", None] = field(default_factory=dict)  # in order, as results depend on nothing else


@dataclass(eq=False)
class FairFlow:
    """Messages that go one after another over the same links, since `since` at `rate` bytes a second."""

    path: Sequence[Resource]
    resources: Sequence[SharedResource]
    messages: deque[FairMessage] = field(default_factory=deque)
    rate: float = 0.0
    since: float = 0.0

    @property
    def ends(self) -> float:
        """When the first message will be through if the rate stays; never as long as there is no rate."""
        return self.since + self.messages[0].left / self.rate if self.messages and self.rate else NEVER


class FairFlows:
    """All flows of a cluster. `settle` after `add`, `end` and `drop`, before time goes on."""

    def __init__(self) -> None:
        self._resources: dict[Resource, SharedResource] = {}
        self._changed: dict[SharedResource, None] = {}

    def open(self, path: Sequence[Resource]) -> FairFlow:
        """A flow over these links, with nothing to send yet."""
        return FairFlow(path, [self._resources.setdefault(one, SharedResource(one.rate)) for one in path])

    @property
    def is_settled(self) -> bool:
        """Whether nothing has changed on any resource since the rates were computed."""
        return not self._changed

    def passed(self, flow: FairFlow, start: float, end: float, size_bytes: float) -> None:
        """Called with the bytes that a flow has sent at one rate, between two times."""

    def add(self, flow: FairFlow, message: FairMessage, now: float) -> None:
        """Let a message follow those that the flow has. A flow over no link has nothing to wait for: give it none."""
        flow.messages.append(message)
        if len(flow.messages) == 1:
            flow.since = now
            for resource in flow.resources:
                resource.flows[flow] = None
                self._changed[resource] = None

    def end(self, flow: FairFlow) -> FairMessage:
        """Take the first message, which is through at `flow.ends`."""
        ends, message = flow.ends, flow.messages.popleft()
        self.passed(flow, flow.since, ends, message.left)
        flow.since = ends
        self._leave_if_idle(flow)
        return message

    def drop(self, flow: FairFlow, message: FairMessage, now: float) -> None:
        """Give a message up, if it is not through; what of it has passed, has passed."""
        if message in flow.messages:
            self._go_on(flow, now)
            flow.messages.remove(message)
            self._leave_if_idle(flow)

    def settle(self, now: float) -> list[FairFlow]:
        """Deal rates where something has changed. Returns the flows that have another rate from `now` on."""
        flows, numbers = self._concerned()
        self._changed.clear()
        if not flows:
            return []
        if len(flows) == 1:  # which has all that its links carry, as most hops of a chain do
            rates = [min(resource.rate for resource in flows[0].resources)]
        else:
            used_by = [[numbers[resource] for resource in flow.resources] for flow in flows]
            rates = fair_rates(used_by, [resource.rate for resource in numbers], [NEVER] * len(flows))
        others = [(flow, rate) for flow, rate in zip(flows, rates, strict=True) if rate != flow.rate]
        for flow, rate in others:
            self._go_on(flow, now)
            flow.rate = rate
        return [flow for flow, _ in others]

    def _concerned(self) -> tuple[list[FairFlow], dict[SharedResource, int]]:
        """The flows that meet what has changed, directly or over others, and the links of all of them, numbered."""
        flows: dict[FairFlow, None] = {}
        numbers = {resource: number for number, resource in enumerate(self._changed)}
        waiting = list(numbers)
        for resource in waiting:
            for flow in resource.flows:
                if flow not in flows:
                    flows[flow] = None
                    for other in flow.resources:
                        if other not in numbers:
                            numbers[other] = len(numbers)
                            waiting.append(other)
        return list(flows), numbers

    def _go_on(self, flow: FairFlow, now: float) -> None:
        """Count what has passed until now. A timer may fire a moment early: nothing has passed then."""
        if now > flow.since and flow.rate:
            sent = min(flow.messages[0].left, flow.rate * (now - flow.since))
            self.passed(flow, flow.since, now, sent)
            flow.messages[0].left -= sent
        flow.since = max(now, flow.since)

    def _leave_if_idle(self, flow: FairFlow) -> None:
        if not flow.messages:
            flow.rate = 0.0
            for resource in flow.resources:
                del resource.flows[flow]
                if resource.flows:  # else nobody's rate depends on it
                    self._changed[resource] = None
