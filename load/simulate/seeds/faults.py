"""The faults of a random system: what happens to whom, when, and for how long."""

from collections.abc import Callable
from random import Random
from typing import Literal

import msgspec

from livescale.shared.messages.membership import Role

FaultKind = Literal[
    "kill", "stop", "freeze", "stall", "part", "outage", "disturb", "cut", "damage", "slow disk", "scale", "role"
]
FAULT_SECONDS = 8.0  # in which faults begin
RESTART_SECONDS = 1.0  # then a process that ended is started again
ROLES: tuple[Role, ...] = ("prefill", "decode", "colocated")
CONTROL = ("registry-0", "router-0", "planner-0", "monitor-0", "gateway-0")


class Fault(msgspec.Struct, frozen=True):
    """`at` seconds after the system was ready this happens to `target`, for `seconds`.

    kill, stop, freeze, part: a process dies, ends as planned, sleeps, or is cut off from the bus. stall: all sleep.
    outage: the bus is down. disturb: the share `amount` of all messages is lost, and as much late or repeated. cut: the
    link between `target` and `other`. damage: bytes that `target` sends over links. slow disk: `amount` times as long.
    scale, role: an operator wants `amount` instances of the model `target`, or the worker in another role.
    """

    at: float
    kind: FaultKind
    target: str = ""
    seconds: float = 0.0
    amount: float = 0.0
    other: str = ""
    role: Role = "colocated"

    @property
    def ends(self) -> float:
        """When it is over and whoever ended runs again, in seconds after the system was ready."""
        return self.at + self.seconds + (RESTART_SECONDS if self.kind in ("kill", "stop") else 0.0)

    @property
    def is_load(self) -> bool:
        """Whether it is something that an operator may do, and nothing goes wrong."""
        return self.kind in ("scale", "role")

    def describe(self) -> str:
        """The fault in words."""
        details = [f"of {self.target}" if self.target else "", f"and {self.other}" if self.other else ""]
        details += [f"for {self.seconds:.2f} s" if self.seconds else "", f"x{self.amount:.2f}" if self.amount else ""]
        return f"{self.at:6.2f} s {self.kind} {' '.join(part for part in details if part)}"


def random_faults(chance: Random, hosts: int, workers: int, models: list[str]) -> list[Fault]:
    """Up to seven faults, by when they begin. One seed of eight has none; there everything must go as planned."""
    makers = FaultMakers(chance, hosts, workers, models)
    count = 0 if chance.random() < 0.125 else chance.randint(1, 7)
    at, faults = chance.uniform(0.0, FAULT_SECONDS / 2), list[Fault]()
    for _ in range(count):
        make = chance.choices([maker for maker, _ in makers.weighted], [weight for _, weight in makers.weighted])[0]
        faults.append(make(at))
        # Many happen close to each other: in the middle of what the ones before have set going.
        at = min(at + chance.choice((0.2, 0.6, 2.0)) * chance.random(), FAULT_SECONDS)
    return faults


class FaultMakers:
    """Make faults of each kind for a system of so many hosts and workers."""

    def __init__(self, chance: Random, hosts: int, workers: int, models: list[str]) -> None:
        self._chance = chance
        self._workers = [f"worker-{number}" for number in range(workers)]
        self._hosts = [f"host-{number}" for number in range(hosts)]
        self._models = models
        self.weighted: list[tuple[Callable[[float], Fault], float]] = [
            (self._kill, 5),
            (self._stop, 1),
            (self._freeze, 3),
            (self._stall, 1),
            (self._part, 3),
            (self._outage, 1),
            (self._disturb, 2),
            (self._cut, 2),
            (self._damage, 1),
            (self._slow_disk, 1),
            (self._scale, 4),
            (self._role, 1),
        ]

    def _anyone(self) -> str:
        """A process; half of all faults are of workers."""
        others = [*CONTROL, *self._hosts]
        return self._chance.choice(self._workers if self._chance.random() < 0.5 else others)

    def _kill(self, at: float) -> Fault:
        return Fault(at, "kill", self._anyone())

    def _stop(self, at: float) -> Fault:
        return Fault(at, "stop", self._anyone())

    def _freeze(self, at: float) -> Fault:
        return Fault(at, "freeze", self._anyone(), self._chance.uniform(0.1, 5.0))

    def _stall(self, at: float) -> Fault:
        return Fault(at, "stall", "", self._chance.uniform(0.1, 5.0))

    def _part(self, at: float) -> Fault:
        return Fault(at, "part", self._anyone(), self._chance.uniform(0.1, 5.0))

    def _outage(self, at: float) -> Fault:
        return Fault(at, "outage", "", self._chance.uniform(0.1, 4.0))

    def _disturb(self, at: float) -> Fault:
        return Fault(at, "disturb", "", self._chance.uniform(0.2, 4.0), self._chance.choice((0.01, 0.05, 0.2)))

    def _cut(self, at: float) -> Fault:
        one, other = self._chance.sample([*self._workers, *self._hosts], 2)
        return Fault(at, "cut", one, self._chance.uniform(0.1, 4.0), other=other)

    def _damage(self, at: float) -> Fault:
        target = self._chance.choice([*self._workers, *self._hosts])
        return Fault(at, "damage", target, self._chance.uniform(0.1, 2.0), self._chance.choice((0.05, 0.5)))

    def _slow_disk(self, at: float) -> Fault:
        return Fault(at, "slow disk", self._chance.choice(self._hosts), self._chance.uniform(0.5, 5.0), 4.0)

    def _scale(self, at: float) -> Fault:
        return Fault(at, "scale", self._chance.choice(self._models), amount=float(self._chance.randint(0, 4)))

    def _role(self, at: float) -> Fault:
        role = self._chance.choice(ROLES)
        return Fault(at, "role", self._chance.choice(self._workers), role=role)
