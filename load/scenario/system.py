"""The system of a scenario: its settings as `livescale up` would have them, and the virtual cluster that they make."""

from collections.abc import Mapping
from copy import copy

from msgspec.structs import replace

from livescale.load.bench.systems.scenario import BATCHES, slowed, with_workers
from livescale.load.scenario.fault_entries import FaultEntry, draw_faults
from livescale.load.scenario.file import CheckedScenario
from livescale.load.scenario.memory import worker_memory
from livescale.load.simulate.cluster_of_stack import cluster_of
from livescale.load.simulate.faults import ClusterFault, victims
from livescale.services.cli.options import PASSED_ON, UpOptions, gather
from livescale.services.supervisor.checks import check_instances, check_live, make_spec, resolve_form
from livescale.services.supervisor.settings import StackSettings
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.topology.topology import Topology


class ScenarioSystem:
    """What is started for a scenario. Raises ValueError for models that do not fit, which names the key."""

    def __init__(self, scenario: CheckedScenario, seed: int, *, wire: bool) -> None:
        self.scenario = scenario
        self.seed = seed
        values = scenario.values
        try:
            self.topology = with_workers(
                scenario.topology, int(str(values.get("workers") or len(scenario.topology.gpus)))
            )
        except ValueError as error:
            raise ValueError(f"settings: {error}") from None
        told = {**BATCHES, **values, "workers": len(self.topology.gpus), "engine": "modelled"}
        plain = gather(UpOptions(**told), StackSettings, PASSED_ON)
        stack = resolve_form(replace(plain, models=scenario.file.models), "bfloat16", "plain")
        check_instances(stack)
        check_live(stack)
        self.stack = replace(stack, **worker_memory(stack, self.topology, scenario.configs))
        self.specs: list[ModelSpec] = [make_spec(model, self.stack) for model in self.stack.models]
        self.cluster = cluster_of(self.stack, self.links, scenario.configs, seed, wire=wire)
        self.faults = self._draw_faults()

    def _draw_faults(self) -> list[ClusterFault]:
        drawn = list[tuple[FaultEntry, list[str]]]()
        for number, entry in enumerate(self.scenario.file.faults):
            try:
                drawn.append((entry, victims(entry.fault(0.0), self.cluster)))
            except ValueError as error:
                raise ValueError(f"faults[{number}]: {error}") from None
        return draw_faults(drawn, self.scenario.file.seconds, self.seed)

    def with_delays(self, seed: int) -> "ScenarioSystem":
        """The same system under the same requests, in which messages take other times."""
        other = copy(self)
        other.cluster = replace(self.cluster, seed=seed)
        return other

    @property
    def links(self) -> Topology:
        """The topology with the rates that count: a system that loads in no time has links without limits."""
        return slowed(self.topology, None) if self.scenario.simulated else self.topology

    def contexts(self) -> Mapping[str, int]:
        """The most tokens that a request of each model may have, prompt and answer together."""
        found = {}
        for spec in self.specs:
            own = self.scenario.configs[spec.path].max_position_embeddings
            found[spec.name] = min(own, spec.max_model_len or own)
        return found
