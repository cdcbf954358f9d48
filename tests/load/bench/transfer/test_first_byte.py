"""How long a first chunk waits for the handshake of its channel, over real processes and as rows."""

import pytest
from click.testing import CliRunner

from livescale.load.bench.transfer.command import transfer
from livescale.load.bench.transfer.first_byte import FirstByte, rows
from tests.load.bench.bench_output import records_of

CASES = [
    "handshake, first contact, of the time to the first chunk",
    "handshake, first plan after a greeting, of the time to the first chunk",
    "handshake, later plans, of the time to the first chunk",
    "handshake, first plan after a greeting to first contact",
    "handshake, later plans to first contact",
]


def test_handshakes_after_a_greeting_and_of_later_plans_are_held_against_the_first_contacts() -> None:
    contacts, later = [FirstByte(0.008, 0.012)] * 3, [FirstByte(0.0005, 0.005), FirstByte(0.005, 0.009)] * 3
    greeted = [FirstByte(0.001, 0.005)] * 3
    found = list(rows(contacts, greeted, [*later, FirstByte(0.0005, 0.005)], has_bars=True))
    assert [one.case for one in found] == CASES
    assert [one.ratio for one in found] == pytest.approx([2 / 3, 0.2, 0.1, 1 / 8, 1 / 16])
    assert [one.ok for one in found] == [None, None, None, True, True]
    assert [one.ok for one in rows(contacts, contacts, contacts, has_bars=True)] == [None, None, None, False, False]
    assert all(one.ok is None for one in rows(contacts, contacts, contacts, has_bars=False))


@pytest.mark.system
def test_it_measures_real_processes() -> None:
    result = CliRunner().invoke(transfer, ["--case", "first-byte", "--passes", "1"])
    records = records_of(result)
    assert [record["case"] for record in records] == CASES, result.output
    assert all(0 < record["value"] < record["against"] for record in records[:3])
