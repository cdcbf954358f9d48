import xml.etree.ElementTree as ET
from pathlib import Path

from click.testing import CliRunner

from livescale.load.bench.record import measured
from livescale.load.bench.transfer.command import transfer
from livescale.load.bench.transfer.picture import draw_transfers
from tests.load.bench.transfer.carried_plans import carried


def test_the_picture_has_a_bar_for_each_ratio_and_a_panel_for_each_plan() -> None:
    records = [
        measured("transfer", "chain of 7", 4.1, "s", 4.0, at_most=1.05),
        measured("transfer", "fanout to 7", 28.0, "s", 0.1, at_least=6.0),  # off the scale
        measured("transfer", "memcpy", 9.0, "GB/s"),
    ]
    svg = draw_transfers(records, {"binomial, k = 1": carried(1.0), "chain of 7": carried(2.0)})
    words = {(element.text or "").strip() for element in ET.fromstring(svg).iter() if element.text}
    assert {"chain of 7", "fanout to 7", "1.02", "280", "binomial, k = 1: 1.00 s", "chain of 7: 2.00 s"} <= words
    assert "memcpy" not in words
    assert draw_transfers([], {}).startswith("<svg")


def test_a_picture_that_cannot_be_written_is_told_in_a_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(transfer, ["--case", "plan-time", "--svg", str(tmp_path)])
    assert result.exit_code == 2
    assert "is a directory" in result.output
