"""Files of scenarios: what is refused says the place and what to do; models by their size have the parameters that
their names promise."""

from pathlib import Path

import pytest

from livescale.load.make_model import make_model
from livescale.load.scenario.file import SIZES, find_config, read_scenario
from livescale.load.scenario.system import ScenarioSystem
from livescale.services.supervisor.checks import BadSettings
from livescale.shared.model.block_layout import block_layouts
from tests.load.scenario.scenarios import SMALL, read

EXAMPLE = Path(__file__).parents[3] / "examples" / "simulate.yaml"
BAD = [
    ("topology: lambdascale-1", "topology: nowhere", "topology: there is no topology 'nowhere'; give a YAML file or"),
    ("topology: lambdascale-1", "topologie: x", "unknown key 'topologie'; did you mean 'topology'?"),
    ("seconds: 5", "seconds: 0", "seconds: Expected `float` > 0.0"),
    ("seconds: 5\n", "", "seconds is missing"),
    ("seconds: 5", "seconds: 5\nwarm-up: 5", "warm-up is 5 s of 5: nothing would count"),
    ("path: 8b", "path: 9b", "models[0].path: '9b' is neither a directory with a config.json nor a known size (7b, 8b"),
    ("max-instances: 2", "max-instanses: 2", "unknown key 'max-instanses' in models[0]; did you mean 'max-instances'?"),
    ("max-instances: 2", "max-instances: 0", "models[0].max-instances: Expected `int` >= 1"),
    ("max-instances: 2}", "max-instances: 2}\n  - {name: chat, path: 8b}", "model 'chat' is given twice"),
    ("rate: 2", "rate: 2\n    model: talk", "arrivals are for model 'talk'; name one of chat"),
    ("rate: 2", "rate: 2\n    trace: x.csv", "give either a trace or a rate"),
    ("rate: 2\n", "trace: x.csv\n", "bursts are for a rate"),
    ("system: +zigzag", "system: +zigzak", "settings: unknown system '+zigzak'; did you mean '+zigzag'?"),
    ("system: +zigzag", "port: 80", "settings: port has no effect in a simulation; leave it out"),
    ("system: +zigzag", "live: maybe", "settings: live: 'maybe' is none of best-effort, off"),
    ("system: +zigzag", "engine-profile: abacus", "settings: engine-profile: there is no 'abacus'"),
    ("workers: 3", "workers: 13", "settings: workers is 13, and lambdascale-1 has 12 GPUs"),
    ("workers: 3", "workers: 3, tensor-parallel-size: 3", "models[0]: "),
    (
        "path: 8b",
        "path: 70b",
        "a worker of the largest takes 138.0 GB, and 72.0 GB of a GPU's memory are for it: raise",
    ),
    ("what: kill", "what: maim", "faults[1].what: 'maim' is none of cut-link, damage, delay, freeze, kill"),
    ("at: 2,", "at: 5,", "faults[1].at is 5 s of 5: it would not happen"),
    ("at: 2,", "", "faults[1]: give either 'at' or 'every'"),
    ("who: worker-2", "who: worker-9", "faults[1]: kill cannot happen to 'worker-9'; name one of registry-0"),
    ("who: worker-2", "who: gateway-0", "faults[1]: kill cannot happen to 'gateway-0'"),
    ("who: worker-2, ", "", "faults[1]: kill needs 'who': the process"),
    ("what: delay", "what: delay, who: worker", "faults[2]: delay has no 'who'"),
    ("what: delay", "what: delay, amount: 2", "faults[2]: 'amount' is a share of messages, 0 to 1, not 2"),
    ("who: worker-2", "who: worker-2, other: worker-1", "faults[1]: 'other' is the other end of a link"),
    ("who: worker-2", "who: worker-2, amount: 3", "faults[1]: 'amount' has no effect with kill"),
    ("max-instances: 2", "min-instances: 9", "min-instances"),
    ("every: 2", "every: 0.000000001", "faults[2].every: it would happen 5e+09 times in 5 s; give 5e-05 or more"),
]


def test_the_small_scenario_is_whole(tmp_path: Path) -> None:
    system = ScenarioSystem(read(tmp_path), 0, wire=False)
    assert len(system.topology.gpus) == 3
    assert system.stack.live == "zigzag"
    assert system.specs[0].max_instances == 2


@pytest.mark.parametrize(("good", "bad", "why"), BAD)
def test_what_is_wrong_is_refused_with_its_place_and_a_remedy(tmp_path: Path, good: str, bad: str, why: str) -> None:
    assert good in SMALL
    with pytest.raises((ValueError, BadSettings)) as error:
        ScenarioSystem(read(tmp_path, SMALL.replace(good, bad, 1)), 0, wire=False)
    assert why in str(error.value)


def test_a_value_of_ones_own_goes_before_that_of_the_system(tmp_path: Path) -> None:
    text = SMALL.replace("system: +zigzag", "system: +zigzag, live: off, downscale-delay-s: 9")
    stack = ScenarioSystem(read(tmp_path, text.replace("live: off", "live: 'off'")), 0, wire=False).stack
    assert (stack.live, stack.plan_policy, stack.downscale_delay_s) == ("off", "chains", 9.0)


def test_the_example_is_whole() -> None:
    system = ScenarioSystem(read_scenario(EXAMPLE), 0, wire=False)
    assert {fault.what for fault in system.faults} == {"kill", "lose"}


def test_an_empty_scenario_is_told_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"small.yaml: the scenario is empty; examples/simulate.yaml is one"):
        read(tmp_path, "# nothing yet\n")


@pytest.mark.parametrize("size", SIZES)
def test_a_size_is_what_it_says(size: str) -> None:
    parameters = sum(layout.size_bytes for layout in block_layouts(SIZES[size], "bfloat16")) / 2
    assert parameters == pytest.approx(float(size[:-1]) * 1e9, rel=0.05)


def test_a_directory_counts_from_beside_the_scenario(tmp_path: Path) -> None:
    make_model(tmp_path / "models" / "tiny", "llama", "tiny", 0)
    path, config = find_config("models/tiny", tmp_path)
    assert path == str(tmp_path / "models" / "tiny")
    assert config.num_hidden_layers == 3
    with pytest.raises(ValueError, match="neither a directory"):
        find_config("models/large", tmp_path)
