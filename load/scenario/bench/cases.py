"""The systems that `livescale bench simulate` runs: how large they are, and what load they get."""

from dataclasses import replace as dataclass_replace
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from livescale.load.scenario.arrivals import Arrivals
from livescale.load.scenario.file import ScenarioFile, check_scenario
from livescale.load.scenario.system import ScenarioSystem
from livescale.services.supervisor.model_settings import ModelSettings
from livescale.shared.model.latency import Work, find_latency
from livescale.shared.topology.topology import Topology

TOPOLOGY = "cluster-a"
SEED = 1
CHUNK = 2048  # tokens of a prompt that are computed in one step

TraceName = Literal["conversations", "code"]
# Rates and mean lengths of the Azure traces of 2023, for requests that are made up in their place.
STAND_INS = {
    "conversations": Arrivals(rate=5.53, prompt_tokens=1155, output_tokens=211),
    "code": Arrivals(rate=2.57, prompt_tokens=2048, output_tokens=28),
}


class Traces(msgspec.Struct, frozen=True, kw_only=True):
    """The files of the traces. Requests of one that is missing are made up."""

    conversations: Path | None = None
    code: Path | None = None

    def file(self, name: TraceName) -> Path | None:
        return self.conversations if name == "conversations" else self.code

    def missing(self) -> list[TraceName]:
        names: tuple[TraceName, ...] = ("conversations", "code")
        return [name for name in names if self.file(name) is None]


class BenchCase(msgspec.Struct, frozen=True, kw_only=True):
    """One system under one load, or idle without a `trace`.

    Prompts take `busy_share` of what all workers can prefill, where it is given; `rate_scale` counts without it. Where
    `all_serve`, every worker loads the model at once.
    """

    workers: int
    seconds: float
    trace: TraceName | None = None
    rate_scale: float = 1.0
    busy_share: float | None = None
    size: str = "8b"
    profile: str = "llama3-8b-a100"
    ranks: int = 1
    all_serve: bool = False

    def system(self, traces: Traces) -> ScenarioSystem:
        """What is started for it. Raises ValueError, as where a trace cannot be read."""
        instances = self.workers // self.ranks
        model = ModelSettings(
            name="chat", path=self.size, min_instances=instances if self.all_serve else 1, max_instances=instances
        )
        file = ScenarioFile(
            topology=TOPOLOGY,
            seconds=self.seconds,
            models=(model,),
            arrivals=() if self.trace is None else (self._arrivals(self.trace, traces),),
            settings={
                "system": "+zigzag",
                "workers": self.workers,
                "engine-profile": self.profile,
                "tensor-parallel-size": self.ranks,
            },
        )
        checked = check_scenario(file, "bench", Path())
        return ScenarioSystem(
            dataclass_replace(checked, topology=grown(checked.topology, self.workers)), SEED, wire=False
        )

    def _arrivals(self, name: TraceName, traces: Traces) -> Arrivals:
        usual, path = STAND_INS[name], traces.file(name)
        assert usual.rate is not None
        scale = self.rate_scale
        if self.busy_share is not None:
            latency = find_latency(self.profile)
            rate = CHUNK / latency.seconds(Work(prefill_tokens=CHUNK, prefill_squares=CHUNK**2))
            scale = self.busy_share * rate * (self.workers // self.ranks) / (usual.rate * usual.prompt_tokens)
        if path is None:
            return replace(usual, rate=usual.rate * scale)
        return Arrivals(trace=str(path.resolve()), window=f"0+{self.seconds:g}", rate_scale=scale)


def grown(topology: Topology, workers: int) -> Topology:
    """The topology with its hosts repeated until there are GPUs for this many workers."""
    hosts, domains = list(topology.hosts), list(topology.domains)
    per_round = len(topology.gpus)
    for number in range(1, -(-workers // per_round)):
        domains += [replace(domain, id=f"r{number}-{domain.id}") for domain in topology.domains]
        for host in topology.hosts:
            id = f"r{number}-{host.id}"
            gpus = [
                replace(gpu, id=f"{id}/{gpu.id.rpartition('/')[2]}", domain=f"r{number}-{gpu.domain}")
                for gpu in host.gpus
            ]
            hosts.append(replace(host, id=id, gpus=gpus))
    return replace(topology, hosts=hosts, domains=domains)
