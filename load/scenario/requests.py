"""The requests of a scenario: when each comes, and what it asks."""

from random import Random
from typing import NamedTuple

from livescale.load.records import Ask
from livescale.load.scenario.system import ScenarioSystem
from livescale.load.simulate.start import made_up_ask
from livescale.load.trace import Arrival, fit


class Due(NamedTuple):
    """A request that is to come: its number among all, and for which model."""

    number: int
    model: str
    arrival: Arrival


def draw_requests(system: ScenarioSystem) -> list[Due]:
    """All requests in the order in which they come. Raises ValueError, which names the entry."""
    scenario, contexts = system.scenario, system.contexts()
    found = list[tuple[float, int, str, Arrival]]()
    for number, entry in enumerate(scenario.file.arrivals):
        model = scenario.file.model_of(entry)
        try:
            drawn = entry.draw(scenario.file.seconds, system.seed + number, scenario.beside)
        except ValueError as error:
            raise ValueError(f"arrivals[{number}]: {error}") from None
        found += [(arrival.at, number, model, arrival) for arrival in fit(drawn, contexts[model])]
    found.sort(key=lambda one: one[:2])
    return [Due(number, model, arrival) for number, (_, _, model, arrival) in enumerate(found)]


def make_ask(system: ScenarioSystem, due: Due) -> Ask:
    """The request itself, made when it is sent. Its prompt shares nothing with others, and follows from the seed."""
    spec = next(spec for spec in system.specs if spec.name == due.model)
    vocabulary = system.scenario.configs[spec.path].vocab_size
    return made_up_ask(due.number, due.arrival, vocabulary, Random(f"{system.seed} {due.number}"))
