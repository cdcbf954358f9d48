"""The systems of the bench: clusters of any size, with real loads or ones that are made up like them."""

from pathlib import Path

from livescale.load.scenario.bench.cases import STAND_INS, BenchCase, Traces, grown
from livescale.load.scenario.requests import draw_requests
from livescale.shared.topology.file import find_topology

TRACE = "arrival_s,prompt,output\n0.0,100,10\n1.0,200,20\n5.0,300,30\n"


def test_a_topology_grows_by_whole_copies_of_its_hosts_and_domains() -> None:
    topology = grown(find_topology("cluster-a"), 70)
    assert len(topology.gpus) == 96
    assert len({gpu.domain for gpu in topology.gpus}) == 12
    assert {gpu.id.rpartition("/")[0] for gpu in topology.gpus} == {host.id for host in topology.hosts}


def test_requests_of_a_trace_come_as_it_says_up_to_the_end(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE)
    case = BenchCase(workers=2, seconds=3.0, trace="code")
    system = case.system(Traces(code=trace))
    assert [(due.arrival.at, due.arrival.prompt_tokens) for due in draw_requests(system)] == [(0.0, 100), (1.0, 200)]
    assert len(system.topology.gpus) == 2


def test_without_a_trace_requests_are_made_up_at_its_rate() -> None:
    seconds = 200.0
    requests = draw_requests(
        BenchCase(workers=2, seconds=seconds, trace="conversations", rate_scale=2.0).system(Traces())
    )
    usual = STAND_INS["conversations"]
    assert usual.rate is not None
    assert abs(len(requests) / seconds - 2 * usual.rate) < 0.1 * 2 * usual.rate
    mean = sum(due.arrival.prompt_tokens for due in requests) / len(requests)
    assert abs(mean - usual.prompt_tokens) < 0.05 * usual.prompt_tokens


def test_half_of_what_twice_as_many_workers_prefill_is_twice_as_much() -> None:
    one, two = (
        len(draw_requests(BenchCase(workers=workers, seconds=20.0, trace="code", busy_share=0.5).system(Traces())))
        for workers in (4, 8)
    )
    assert 1.7 < two / one < 2.3


def test_every_worker_is_to_serve_where_all_are() -> None:
    (spec,) = BenchCase(workers=4, seconds=1.0, all_serve=True, ranks=2).system(Traces()).specs
    assert (spec.min_instances, spec.max_instances) == (2, 2)
