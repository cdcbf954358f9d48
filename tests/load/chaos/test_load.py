from pathlib import Path

import pytest

from livescale.load.chaos.load import ChaosSettings, make_load, make_phases, seeded
from livescale.load.records import Ask


def test_every_other_request_is_sampled_from_a_seed_of_its_own() -> None:
    one, two, three = (seeded(Ask(index, 0.0, [1], 4)) for index in (0, 1, 3))
    assert one.temperature == 0.0
    assert two.temperature == three.temperature > 0
    assert two.seed != three.seed
    assert two == seeded(Ask(1, 0.0, [1], 4))


def test_the_load_is_made_up_or_replayed_for_as_long_as_asked(tmp_path: Path) -> None:
    made = make_load(ChaosSettings(minutes=0.5, rate=4.0))
    assert made == make_load(ChaosSettings(minutes=0.5, rate=4.0))
    assert 60 < len(made) < 180
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt,output\n1,10,20\n40,10,20\n")
    (arrival,) = make_load(ChaosSettings(minutes=0.5, trace=str(path)))
    assert (arrival.at, arrival.prompt_tokens, arrival.output_tokens) == (1.0, 10, 20)


@pytest.mark.parametrize("seconds", [6.0, 20.0, 50.0])
def test_calm_and_burst_take_turns_until_the_end(seconds: float) -> None:
    phases = make_phases(seconds, 2.0)
    assert sum(phase.seconds for phase in phases) == pytest.approx(seconds)
    assert {(phase.name, phase.rate) for phase in phases} == {("calm", 1.0), ("burst", 3.5)}
