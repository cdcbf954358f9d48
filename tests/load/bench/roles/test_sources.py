"""Rows of role-sources: what counts of a run, and when bars are kept."""

import pytest

from livescale.load.bench.roles.sources import SourcesRun, measure, prepare, rows, scale_out
from livescale.load.bench.roles.sources_system import PrefillSourcesCluster, sources_settings
from livescale.load.bench.samples import BenchFailed
from livescale.load.records import RequestRecord
from livescale.load.simulate.cluster import VirtualCluster, virtual_cluster
from livescale.load.simulate.start import quiet
from livescale.shared.messages.registry import AskSnapshot
from livescale.shared.messages.scaling import Decision, Phase, ScaleRecord, ScaleState
from livescale.shared.simulation import virtual_time
from livescale.shared.subjects import SNAPSHOT


def stream(*token_at: float) -> RequestRecord:
    return RequestRecord(
        index=0,
        due=0.0,
        sent=0.0,
        ended=99.0,
        prompt_tokens=100,
        asked_tokens=len(token_at),
        finish_reason="length",
        token_ids=[1] * len(token_at),
        token_at=list(token_at),
    )


def scale(begin: float, end: float, state: ScaleState = "done") -> ScaleRecord:
    decision = Decision(
        id="d", model="m", at=0.0, action="out", current=4, target=5, rule="operator", reason="", by="operator"
    )
    phases = [Phase(name="commanded", at=begin), Phase(name="whole", at=end)]
    return ScaleRecord(id="s", decision=decision, state=state, phases=phases, outcome="lost")


def test_gaps_count_while_a_load_runs_also_those_before_second_tokens() -> None:
    run = measure([scale(10.0, 11.0), scale(20.0, 22.0)], [stream(1.0, 2.0, 10.5, 11.5, 13.0), stream(21.0, 21.5)])
    assert (run.loads, run.gaps) == ([1.0, 2.0], [8.5, 1.0, 0.5])


def test_a_scale_or_a_request_that_failed_ends_the_bench() -> None:
    with pytest.raises(BenchFailed, match="the first: lost"):
        measure([scale(1.0, 2.0, "failed")], [stream(1.0, 2.0)])
    with pytest.raises(BenchFailed, match="1 requests"):
        measure(
            [scale(1.0, 2.0)], [RequestRecord(index=0, due=0.0, sent=0.0, ended=1.0, prompt_tokens=1, asked_tokens=2)]
        )


@pytest.mark.parametrize(("load", "gap", "kept"), [(0.7, 0.7, (True, True)), (0.8, 0.9, (False, False))])
def test_both_are_held_against_loads_from_those_that_prefill(load: float, gap: float, kept: tuple[bool, bool]) -> None:
    made = rows([SourcesRun([load] * 3, ["d"], [gap] * 9)] * 3, [SourcesRun([1.0] * 3, ["p"], [1.0] * 9)] * 3)
    assert tuple(record.ok for record in made) == kept


@pytest.mark.parametrize(("kind", "role"), [(VirtualCluster, "decode"), (PrefillSourcesCluster, "prefill")])
def test_parameters_come_from_instances_that_decode_unless_roles_are_not_looked_at(
    kind: type[VirtualCluster], role: str
) -> None:
    async def play() -> None:
        async with virtual_cluster(sources_settings(1), kind) as made:
            await prepare(made)
            snapshot = await made.operator.call(SNAPSHOT, AskSnapshot(), timeout=5.0)
            able = {one.id for one in snapshot.workers if one.role == role}
            run = measure([await scale_out(made)], [stream(1.0, 2.0)])
            assert set(run.senders) <= able

    with quiet():
        virtual_time.run(play(), limit_seconds=600)
