"""The system of a scenario: its settings as `livescale up` would have them, and the virtual cluster that they make."""

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from livescale.load.bench.systems.scenario import BATCHES, slowed, with_workers
from livescale.load.scenario.fault_entries import FaultEntry, draw_faults
from livescale.load.scenario.file import CheckedScenario
from livescale.load.simulate.cluster_of_stack import cluster_of
from livescale.load.simulate.faults import Fault, victims
from livescale.services.cli.options import PASSED_ON, UpOptions, gather
from livescale.services.supervisor.checks import check_instances, check_live, make_spec, ranks_of, resolve_form
from livescale.services.supervisor.resources import round_up
from livescale.services.supervisor.settings import StackSettings
from livescale.services.worker.settings import MIB
from livescale.shared.memory.arena import placed_bytes
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.model.block_layout import shard_layouts
from livescale.shared.model.sharding import check_shards
from livescale.shared.topology.topology import Topology

USED_SHARE = 0.9  # of a GPU's memory, for parameters and KV


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
        self.stack = replace(stack, **self._memory(stack))
        self.specs: list[ModelSpec] = [make_spec(model, self.stack) for model in self.stack.models]
        self.cluster = cluster_of(self.stack, self.links, scenario.configs, seed, wire=wire)
        self.faults = self._draw_faults()

    def _draw_faults(self) -> list[Fault]:
        drawn = list[tuple[FaultEntry, list[str]]]()
        for number, entry in enumerate(self.scenario.file.faults):
            try:
                drawn.append((entry, victims(entry.fault(0.0), self.cluster)))
            except ValueError as error:
                raise ValueError(f"faults[{number}]: {error}") from None
        return draw_faults(drawn, self.scenario.file.seconds, self.seed)

    def _memory(self, stack: StackSettings) -> dict[str, int]:
        """Parameters get what the largest model takes, KV what is left of the smallest GPU's memory."""
        arena = stack.arena_bytes or max(self._rank_bytes(stack))
        room = int(USED_SHARE * min(gpu.memory_bytes for gpu in self.topology.gpus))
        if stack.kv_bytes is None and arena + MIB > room:
            raise ValueError(
                f"models: a worker of the largest takes {arena / 1e9:.1f} GB, and {room / 1e9:.1f} GB of a GPU's "
                "memory are for it: raise tensor-parallel-size, or give a topology with more memory"
            )
        return {"arena_bytes": round_up(arena), "kv_bytes": stack.kv_bytes or room - arena}

    def _rank_bytes(self, stack: StackSettings) -> Iterator[int]:
        """The bytes of parameters of a worker, for each model."""
        for number, model in enumerate(stack.models):
            config, ranks = self.scenario.configs[model.path], ranks_of(model, stack)
            try:
                check_shards(config, ranks)
            except ValueError as error:
                raise ValueError(f"models[{number}]: {error}") from None
            dtype = model.dtype if model.dtype not in (None, "auto") else stack.dtype
            assert dtype != "auto"
            yield placed_bytes([each.size_bytes for each in shard_layouts(config, dtype, 0, ranks, "plain")])

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
