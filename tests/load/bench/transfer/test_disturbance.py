import pytest
from click.testing import CliRunner

from livescale.load.bench.transfer.command import transfer
from tests.checkpoints import tiny_checkpoint
from tests.load.bench.bench_output import records_of

pytestmark = pytest.mark.system


@pytest.mark.slow
def test_it_prints_how_fast_a_source_decodes_while_it_feeds_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "livescale.load.bench.transfer.disturbance.kept_model", lambda size, tell: tiny_checkpoint("llama")
    )
    result = CliRunner().invoke(transfer, ["--case", "disturbance", "--rate", "10", "--passes", "1"])
    records = records_of(result)
    cases = ["decoding, undisturbed", "decoding, feeding 3 by chain", "decoding, feeding 3 by fan-out"]
    loops = [f"event loop of the source, {case}" for case in ("undisturbed", "chain", "fan-out")]
    assert [record["case"] for record in records] == [*2 * cases, *loops], result.output
    assert all(record["value"] > 0 for record in records), result.output
    assert [record["bar"] for record in records if record["case"] == cases[1]] == [0.93, None]
