"""How long a first chunk waits for the handshake of its channel, over real processes and as rows."""

import pytest
from click.testing import CliRunner

from livescale.load.bench.transfer.command import transfer
from livescale.load.bench.transfer.first_byte import FirstByte, rows
from tests.load.bench.bench_output import records_in

CASES = [
    "handshake, first contact, of the time to the first chunk",
    "handshake, later plans, of the time to the first chunk",
    "handshake, later plans to first contact",
]


def test_a_handshake_of_later_plans_is_held_against_the_first_contacts() -> None:
    contacts, later = [FirstByte(0.008, 0.012)] * 3, [FirstByte(0.0005, 0.005), FirstByte(0.005, 0.009)] * 3
    first, then, ratio = rows(contacts, [*later, FirstByte(0.0005, 0.005)], has_bars=True)
    assert [first.case, then.case, ratio.case] == CASES
    assert (first.ratio, then.ratio) == (pytest.approx(2 / 3), pytest.approx(0.1))
    assert (ratio.ratio, ratio.ok) == (pytest.approx(1 / 16), True)
    assert [one.ok for one in rows(contacts, contacts, has_bars=True)] == [None, None, False]
    assert all(one.ok is None for one in rows(contacts, contacts, has_bars=False))


@pytest.mark.system
def test_it_measures_real_processes() -> None:
    result = CliRunner().invoke(transfer, ["--case", "first-byte", "--passes", "1"])
    records = records_in(result.stdout)
    assert [record["case"] for record in records] == CASES, result.output
    assert all(0 < record["value"] < record["against"] for record in records[:2])
