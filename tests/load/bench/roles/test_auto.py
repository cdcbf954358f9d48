"""Rows of auto-roles: which systems are compared, and when bars are kept."""

from collections.abc import Mapping

from livescale.load.bench.record import Record
from livescale.load.bench.roles.auto import AUTO_LOOSE, AUTO_TIGHT, COLOCATED, SPLIT, rows, told
from livescale.load.records import RequestRecord

SYSTEMS = (AUTO_TIGHT, AUTO_LOOSE, *COLOCATED, *SPLIT)


def records(good: int, gap: float = 0.02) -> list[RequestRecord]:
    """Ten requests, of which so many have their first token in time; one more came before what counts."""
    return [
        RequestRecord(
            index=number,
            due=25.0 * (number > 0),
            sent=0.0,
            ended=99.0,
            prompt_tokens=100,
            asked_tokens=2,
            finish_reason="length",
            token_ids=[1, 2],
            token_at=[first, first + gap],
        )
        for number in range(11)
        for first in [25.0 * (number > 0) + (0.4 if 0 < number <= good else 0.5)]
    ]


def found(shares: Mapping[str, int], seeds: int = 1) -> dict[str, Record]:
    """The rows where the systems have so many of ten in time, 5 where nothing is said."""
    runs = {system.name: [records(shares.get(system.name, 5))] * seeds for system in SYSTEMS}
    return {record.case: record for record in rows(runs, 20.0)}


def test_auto_is_held_against_the_best_of_each_kind() -> None:
    kept = found({AUTO_TIGHT.name: 9, AUTO_LOOSE.name: 7, COLOCATED[2].name: 7, SPLIT[1].name: 7}, seeds=3)
    for case, ratio in (
        ("auto / best colocated", 9 / 7),
        ("auto / best split", 9 / 7),
        ("auto / best of all, 150 ms", 1),
    ):
        assert (kept[case].ok, kept[case].ratio) == (True, ratio)
    missed = found({AUTO_TIGHT.name: 9, AUTO_LOOSE.name: 9, COLOCATED[0].name: 8, SPLIT[3].name: 10})
    assert [record.ok for record in missed.values() if record.bar] == [False, False, False]


def test_every_system_has_its_figures() -> None:
    figures = found({COLOCATED[0].name: 3})
    assert figures["colocated, --tbt-ratio 1.1, in time at 22 ms"].value == 0.3
    assert figures["4 prefill, 4 decode, at 150 ms"].value == 0.5


def test_a_run_is_told_in_words() -> None:
    assert told(records(6), 0.022, 20.0) == ("0.600 of 10 in time (first token 0.600, others 1.000); 0.545 of all 11")
    assert told(records(6, gap=0.03), 0.022, 20.0).startswith("0.000 of 10 in time (first token 0.600, others 0.000)")
