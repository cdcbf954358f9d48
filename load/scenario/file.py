"""The file of a scenario: what it may tell, and how it is read and checked.

Models may be known by their size alone, with the shapes of published ones: no checkpoint is needed to simulate them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from livescale.load.scenario.arrivals import Arrivals, Seconds
from livescale.load.scenario.fault_entries import FaultEntry
from livescale.load.scenario.values import read_settings
from livescale.services.supervisor.model_settings import ModelSettings
from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.model.checkpoint import load_model_config
from livescale.shared.runtime.settings import Settings
from livescale.shared.runtime.yaml_file import convert, names_file, read_yaml, rename_keys, type_of
from livescale.shared.topology.file import find_topology
from livescale.shared.topology.topology import Topology


def llama(
    vocabulary: int, hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, context: int
) -> ModelConfig:
    return ModelConfig(
        family="llama",
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=128,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
        max_position_embeddings=context,
    )


# As Llama 2, Llama 3 (8b), Mistral Small (24b) and Qwen2.5 (72b) are.
SIZES = {
    "7b": llama(32_000, 4_096, 11_008, 32, 32, 32, 4_096),
    "8b": llama(128_256, 4_096, 14_336, 32, 32, 8, 8_192),
    "13b": llama(32_000, 5_120, 13_824, 40, 40, 40, 4_096),
    "24b": llama(131_072, 5_120, 32_768, 40, 32, 8, 32_768),
    "70b": llama(32_000, 8_192, 28_672, 80, 64, 8, 4_096),
    "72b": llama(152_064, 8_192, 29_568, 80, 64, 8, 32_768),
}


def find_config(path: str, beside: Path) -> tuple[str, ModelConfig]:
    """The shape of a model: of a size, or of the config.json in a directory, which counts from `beside`.

    With it goes the path that it has on simulated disks. Raises ValueError.
    """
    if path.lower() in SIZES:
        return f"size:{path.lower()}", SIZES[path.lower()]
    directory = (beside / path).resolve()
    if not directory.is_dir():
        raise ValueError(f"{path!r} is neither a directory with a config.json nor a known size ({', '.join(SIZES)})")
    return str(directory), load_model_config(directory)


MOST_FAULTS = 100_000  # of one entry, by chance


class ScenarioFile(Settings, frozen=True, kw_only=True):
    """A scenario: a cluster, models, the requests that come within `seconds`, and what goes wrong.

    `models` are told as in the file of `livescale up`, but that a path may be a size such as 8b. `settings` are those
    of `livescale up` too, `system` among them. Requests of the first `warm_up` seconds do not count.
    """

    topology: str
    seconds: Seconds
    models: Annotated[tuple[ModelSettings, ...], Meta(min_length=1)]
    arrivals: tuple[Arrivals, ...] = ()
    faults: tuple[FaultEntry, ...] = ()
    settings: Mapping[str, object] = {}
    seed: Annotated[int, Meta(ge=0)] = 0
    warm_up: Annotated[float, Meta(ge=0)] = 0.0

    def __post_init__(self) -> None:
        names = [model.name for model in self.models]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"model {twice[0]!r} is given twice; give every model a name of its own")
        for arrivals in self.arrivals:
            if self.model_of(arrivals) not in names:
                raise ValueError(f"arrivals are for model {arrivals.model!r}; name one of {', '.join(names)}")
        for number, fault in enumerate(self.faults):
            if fault.at is not None and fault.at >= self.seconds:
                raise ValueError(f"faults[{number}].at is {fault.at:g} s of {self.seconds:g}: it would not happen")
            if fault.every is not None and self.seconds / fault.every > MOST_FAULTS:
                times, least = self.seconds / fault.every, self.seconds / MOST_FAULTS
                often = f"it would happen {times:g} times in {self.seconds:g} s"
                raise ValueError(f"faults[{number}].every: {often}; give {least:g} or more")
        if self.warm_up >= self.seconds:
            raise ValueError(f"warm-up is {self.warm_up:g} s of {self.seconds:g}: nothing would count")

    def model_of(self, arrivals: Arrivals) -> str:
        return arrivals.model or (self.models[0].name if len(self.models) == 1 else "")


@dataclass(frozen=True, kw_only=True)
class CheckedScenario:
    """A scenario with what its file names. `values` are settings by field name; a `simulated` system loads in no
    time."""

    name: str
    beside: Path
    file: ScenarioFile
    topology: Topology
    configs: Mapping[str, ModelConfig]
    values: Mapping[str, object]
    simulated: bool


def read_scenario(path: Path) -> CheckedScenario:
    """Read a scenario. Raises ValueError, which names the file, the place in it, and what to do."""
    content = read_yaml(path)
    if content == {}:
        raise ValueError(f"{path}: the scenario is empty; examples/simulate.yaml is one to begin with")
    try:
        file = convert(rename_keys(content, type_of(ScenarioFile)), ScenarioFile)
        assert isinstance(file, ScenarioFile)
        return check_scenario(file, path.stem, path.parent)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def check_scenario(file: ScenarioFile, name: str, beside: Path) -> CheckedScenario:
    """Find what a scenario names. Raises ValueError, which names the key."""
    values, simulated = read_settings(file.settings)
    models, configs = list[ModelSettings](), dict[str, ModelConfig]()
    for number, model in enumerate(file.models):
        try:
            path, config = find_config(model.path, beside)
        except ValueError as error:
            raise ValueError(f"models[{number}].path: {error}") from None
        configs[path] = config
        models.append(replace(model, path=path))
    try:
        topology = find_topology(str(beside / file.topology) if names_file(file.topology) else file.topology)
    except ValueError as error:
        raise ValueError(f"topology: {error}") from None
    return CheckedScenario(
        name=name,
        beside=beside,
        file=replace(file, models=tuple(models)),
        topology=topology,
        configs=configs,
        values=values,
        simulated=simulated,
    )
