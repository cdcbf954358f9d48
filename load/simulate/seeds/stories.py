"""Stories of a random system: faults that follow each other so closely that processes must agree anew while they act.

Single faults at random times seldom meet: a planner has to die just when it has commanded, and messages have to be lost
just when somebody is heard again. A story brings them together, about a moment when requests come.
"""

from collections.abc import Callable, Sequence
from random import Random

from livescale.load.simulate.seeds.history import Moment, SeedFault, SeedFaultKind

Story = Callable[["Cast", float], list[SeedFault]]


class Cast:
    """The processes and models that a story is about, and the source of its chance."""

    def __init__(self, chance: Random, processes: Sequence[str], models: Sequence[str]) -> None:
        self.chance = chance
        self.models = models
        self.workers = [id for id in processes if id.startswith("worker-")]
        self.hosts = [id for id in processes if id.startswith("host-")]
        self.routers = [id for id in processes if id.startswith("router-")]

    def soon(self, least: float, most: float) -> float:
        return self.chance.uniform(least, most)

    def worker(self) -> str:
        return self.chance.choice(self.workers)

    def scale(self, at: float, *instances: int) -> SeedFault:
        """An operator's command, whose amount is one of `instances`."""
        return SeedFault(at, "scale", self.chance.choice(self.models), amount=float(self.chance.choice(instances)))

    def kill(self, at: float, who: str, most: float = 1.0) -> SeedFault:
        return SeedFault(at, "kill", who, self.soon(0.2, most))

    def lose(self, at: float, most: float = 2.0) -> SeedFault:
        return SeedFault(at, "lose", "", self.soon(0.3, most), self.chance.choice((0.1, 0.3, 0.5)))


def registry_forgets(cast: Cast, at: float) -> list[SeedFault]:
    """The process that joined last leaves, the registry is started again, and others join."""
    last, other = cast.worker(), cast.worker()
    gone = at + cast.soon(1.0, 2.0)
    back = gone + cast.soon(0.3, 1.0)
    return [
        cast.kill(at, last, 0.4),
        SeedFault(gone, "stop", last, cast.soon(2.0, 5.0)),
        cast.kill(back, "registry-0"),
        cast.kill(back + cast.soon(1.0, 2.5), other, 0.4),
    ]


def planner_dies_loading(cast: Cast, at: float) -> list[SeedFault]:
    """A planner takes over what another has begun, and a process that sends or receives is lost at about that time."""
    away = cast.soon(0.1, 0.3)
    back = at + away + cast.soon(0.1, 1.0)
    return [
        cast.scale(at, 2, 4, 8),
        SeedFault(at, "kill", "planner-0", away, when="loading"),
        SeedFault(back, "kill", "", cast.soon(0.5, 3.0), when="sending"),
    ]


def drained_twice(cast: Cast, at: float) -> list[SeedFault]:
    """A planner dies while instances drain, or hears nothing of it, and the next one commands it again."""
    less = at + cast.soon(0.5, 3.0)
    dies = SeedFault(less, "kill", "planner-0", cast.soon(0.1, 0.5), when="draining")
    deaf = SeedFault(less, "part", "planner-0", cast.soon(0.3, 1.5), when="draining")
    unheard = SeedFault(less + cast.soon(0.0, 0.02), "lose", "", cast.soon(0.3, 1.5), 0.5)
    return [cast.scale(at, 4, 8), cast.scale(less, 0, 1), cast.chance.choice((dies, deaf, unheard, unheard))]


def target_dies(cast: Cast, at: float) -> list[SeedFault]:
    """Workers die while new ones are loaded and perhaps serve already."""
    moment: Moment = cast.chance.choice(("handing over", "handing over", "live", "loading"))
    return [
        cast.scale(at, 2, 4, 8),
        SeedFault(at, cast.chance.choice(("kill", "freeze")), "", cast.soon(0.5, 7.0), when=moment),
        SeedFault(at + cast.soon(0.0, 1.0), "kill", "", cast.soon(0.5, 4.0), when="live"),
    ]


def noise_under_way(cast: Cast, at: float) -> list[SeedFault]:
    """Links damage what they carry while requests and their KV are handed over."""
    share = cast.chance.choice((0.1, 0.3, 0.5))
    moment: Moment = cast.chance.choice(("handing over", "live", ""))
    return [cast.scale(at, 2, 4, 8), SeedFault(at, "noise", "", cast.soon(2.0, 5.0), share, when=moment)]


def bus_goes(cast: Cast, at: float) -> list[SeedFault]:
    """Short outages, in which requests end and nobody hears it."""
    gaps = [cast.soon(0.2, 1.0) for _ in range(cast.chance.randint(1, 3))]
    starts = [at + sum(gaps[:number]) for number in range(len(gaps))]
    return [SeedFault(start, "outage", seconds=cast.soon(0.1, 0.6)) for start in starts]


def router_goes(cast: Cast, at: float) -> list[SeedFault]:
    """The router in office sleeps, ends or dies while requests come and are handed over."""
    what: SeedFaultKind = cast.chance.choice(("freeze", "freeze", "stop", "kill"))
    seconds = cast.soon(1.0, 7.0) if what == "freeze" else cast.soon(0.2, 1.0)
    moment: Moment = cast.chance.choice(("handing over", "live", ""))
    late = [SeedFault(at, "delay", "", cast.soon(1.0, 4.0), 0.3)] if cast.chance.random() < 0.5 else []
    return [cast.scale(at, 2, 4, 8), SeedFault(at + 0.1, what, "router-0", seconds, when=moment), *late]


def answers_late(cast: Cast, at: float) -> list[SeedFault]:
    """Requests are handed over while messages overtake each other."""
    moment: Moment = cast.chance.choice(("loading", "live"))
    return [cast.scale(at, 2, 4, 8), SeedFault(at, "delay", "", cast.soon(2.0, 4.0), 0.5, when=moment)]


def suspect_is_back(cast: Cast, at: float) -> list[SeedFault]:
    """Workers are silent for long enough to be suspected, and the word that they live may be lost."""
    silent = cast.soon(1.5, 2.6)
    what: SeedFaultKind = cast.chance.choice(("freeze", "part"))
    whom = [cast.worker() for _ in range(2)]
    lost = SeedFault(at + silent - 0.1, "lose", "", cast.soon(0.5, 2.0), 0.5)
    return [*(SeedFault(at, what, one, silent) for one in dict.fromkeys(whom)), lost]


def reader_unheard(cast: Cast, at: float) -> list[SeedFault]:
    """A host reads a model again, and its word of it may be lost."""
    host, away = cast.chance.choice(cast.hosts), cast.soon(0.2, 0.6)
    read, deaf = at + away + cast.soon(0.2, 2.0), cast.chance.choice((host, "registry-0"))
    unheard = SeedFault(read, "part", deaf, cast.soon(0.3, 1.8))
    aimed = SeedFault(at + away, "part", deaf, cast.soon(0.3, 1.8), when="reading")
    return [SeedFault(at, "kill", host, away), cast.chance.choice((unheard, aimed, aimed, cast.lose(read)))]


def sleeper_commanded(cast: Cast, at: float) -> list[SeedFault]:
    """Workers sleep until they are dead, with commands for them under way."""
    asleep = at + cast.soon(0.0, 0.5)
    return [
        cast.scale(at, 2, 4, 8),
        SeedFault(asleep, "freeze", cast.worker(), cast.soon(2.6, 6.0)),
        cast.scale(asleep + cast.soon(0.2, 2.0), 0, 1, 8),
    ]


def kv_cut_off(cast: Cast, at: float) -> list[SeedFault]:
    """A worker is lost to the bus, sleeps or dies while KV moves between it and another, which may be whole already."""
    what: SeedFaultKind = cast.chance.choice(("part", "part", "freeze", "kill"))
    less = at + cast.soon(0.5, 3.0)
    lost = SeedFault(cast.chance.choice((at, less)), what, "", cast.soon(0.5, 6.0), when="moving KV")
    late = [SeedFault(at, "delay", "", cast.soon(3.0, 5.0), 0.5)] if cast.chance.random() < 0.5 else []
    return [cast.scale(at, 2, 4, 8), cast.scale(less, 1), lost, *late]


def router_asleep(cast: Cast, at: float) -> list[SeedFault]:
    """The router sleeps for longer than its lease while requests wait at it; another one may take over meanwhile."""
    asleep = SeedFault(at, "freeze", "", cast.soon(2.8, 6.0), when="queueing")
    return [cast.scale(at, 0, 0, 1), asleep, cast.scale(at + cast.soon(0.5, 2.0), 2, 4, 8)]


def router_back_moving(cast: Cast, at: float) -> list[SeedFault]:
    """Routers take office again and again while requests move between workers, and hear of moves before they hear where
    these requests are: messages overtake each other."""
    late = SeedFault(at, "delay", "", cast.soon(3.0, 5.0), 0.5)
    moments: Sequence[Moment] = ("moving KV", "handing over", "moving KV", "live")
    gone = [
        SeedFault(at + 0.8 * number, "stop", cast.chance.choice(cast.routers), cast.soon(0.05, 0.3), when=moment)
        for number, moment in enumerate(moments)
    ]
    return [cast.scale(at, 4, 8), late, *gone, cast.scale(at + cast.soon(1.0, 2.5), 1, 2)]


def target_sleeps(cast: Cast, at: float) -> list[SeedFault]:
    """A worker that loads sleeps for longer than its lease while others take requests over from it."""
    asleep = SeedFault(at, "freeze", "", cast.soon(4.0, 7.0), when="handing over")
    return [cast.scale(at, 0, 1), cast.scale(at + cast.soon(0.5, 1.5), 4, 8), asleep]


def late_and_twice(cast: Cast, at: float) -> list[SeedFault]:
    """Commands and answers come late and twice while an operator changes the number of instances."""
    less = at + cast.soon(1.0, 3.0)
    begins, lasts = cast.chance.choice((at, less - 0.5)), cast.soon(2.0, 4.0)
    disturbed: list[SeedFault] = [
        SeedFault(begins, "delay", "", lasts, 0.5),
        SeedFault(begins, "repeat", "", lasts, 0.5),
    ]
    return [cast.scale(at, 4, 8), cast.scale(less, 0, 1), *disturbed]


def restarted_under_orders(cast: Cast, at: float) -> list[SeedFault]:
    """Spare workers are started again just when they are to load, and others hear late that they have new lives."""
    late = SeedFault(at, "delay", "", cast.soon(1.0, 2.0), 0.5)
    deaths = [cast.kill(at, who, 0.4) for who in dict.fromkeys(cast.worker() for _ in range(3))]
    return [late, *deaths, cast.scale(at + cast.soon(0.1, 0.7), 4, 8)]


def up_and_down(cast: Cast, at: float) -> list[SeedFault]:
    """An operator changes the number of instances again and again; nothing goes wrong."""
    return [cast.scale(at + cast.soon(0.0, 4.0), 0, 1, 2, 4, 8) for _ in range(cast.chance.randint(2, 5))]


STORIES: Sequence[Story] = (
    *(registry_forgets, planner_dies_loading, drained_twice, target_dies, noise_under_way, bus_goes),
    *(router_goes, answers_late, suspect_is_back, reader_unheard, sleeper_commanded, up_and_down),
    *(kv_cut_off, router_asleep, router_back_moving, target_sleeps, late_and_twice, restarted_under_orders),
)


def random_story(cast: Cast, at: float) -> list[SeedFault]:
    """One of the stories, which begins at this time."""
    return cast.chance.choice(STORIES)(cast, at)
