"""`livescale bench engine`: what it says of what was measured, and engines in processes of their own."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from livescale.load.bench.engine import command as bench
from livescale.load.bench.engine.cases import CASES, PREFILLS, attention_share, layer_shapes, mixed_question, prompts
from livescale.load.bench.engine.overhead import FEW, MANY, StepCost, layer_cost, small_model
from livescale.load.bench.engine.page import rate_cells, render_engine
from livescale.load.bench.engine.processes import ROOT, Member, MemberFailed, Program, members_of
from livescale.load.bench.engine.rows import (
    LLAMA,
    OWN,
    TRANSFORMERS,
    VLLM,
    SizeRun,
    bars_of,
    kept_rows,
    mixed_rows,
    p99,
    rows,
    values,
)
from livescale.load.bench.engine.run import PROGRAMS, relative_error
from livescale.load.bench.record import Record
from livescale.load.peers.protocol import Chosen, CountPython, Decode, Greedy, Keep, Kept, Mixed, Prefill, Ready, Took
from livescale.services.supervisor.commands import WORKER_ENV
from livescale.shared.messages.parameters import DType
from tests.load.bench.printed import CONDITIONS, records_in
from tests.made import tiny

OWN_PROGRAM = PROGRAMS[0]


def measured_run(
    rates: dict[str, float], size: str = "500m", kernels: str = "avx512_bf16", dtype: DType = "bfloat16"
) -> SizeRun:
    """Every case has these rates, and the core's are 100."""
    run = SizeRun(size, dtype)
    run.errors = dict.fromkeys(rates, 0.01)
    run.rates = {case.name: {name: [rate] for name, rate in rates.items()} for case in CASES}
    run.roofs = {case.name: [100.0] for case in CASES}
    run.attention = {case.name: 0.25 for case in PREFILLS}
    run.ready = {name: Ready(4.0) for name in rates} | {OWN: Ready(3.0, 0.01, kernels)}
    run.firsts = {name: [[0.1] * 6] for name in rates}
    # Of the steps beside prompts three in two hundred take three times as long.
    both = Took([0.1] * 197 + [0.3] * 3, 20.6)
    run.mixed = [Mixed(Took([0.1] * 200, 20.0), Took([1.0], 1.0), both, 3_200, 1_024)]
    run.kept = [Kept(Took([8.0], 8.0), Took([0.5], 0.5), Took([0.75], 0.75))]
    return run


def verdicts(records: Sequence[Record]) -> dict[str, bool | None]:
    return {record.case: record.ok for record in records}


def test_the_fastest_peer_counts_and_the_bar_is_that_of_the_size() -> None:
    slower = {OWN: 97.0, TRANSFORMERS: 50.0, VLLM: 100.0, LLAMA: 80.0}
    case = "prefill 512 / fastest peer (vLLM, before transformers and llama.cpp)"
    assert verdicts([*rows(measured_run(slower))])[f"500m {case}"] is False
    assert verdicts([*rows(measured_run(slower, "120m"))])[f"120m {case}"] is True
    assert verdicts([*rows(measured_run(slower, "30m"))])[f"30m {case}"] is None


def test_without_vllm_the_fastest_peer_is_told_and_not_judged() -> None:
    alone = verdicts([*rows(measured_run({OWN: 40.0, TRANSFORMERS: 50.0}))])
    assert alone["500m prefill 512 / fastest peer (transformers, the only one)"] is None
    both = verdicts([*rows(measured_run({OWN: 40.0, TRANSFORMERS: 50.0, LLAMA: 60.0}))])
    assert both["500m prefill 512 / fastest peer (llama.cpp, before transformers)"] is None


def test_bars_are_those_of_the_kernels_that_ran() -> None:
    rates = {OWN: 75.0, TRANSFORMERS: 50.0}
    tiles = verdicts([*rows(measured_run(rates, kernels="amx"))])
    assert tiles["500m prefill 512 / GEMM"] is None
    assert tiles["500m prefill 512 / GEMM, attention's as well"] is True
    assert tiles["500m decode b1 / memory"] is False
    assert verdicts([*rows(measured_run(rates, kernels="amx-emulated"))])["500m decode b1 / memory"] is True
    portable = verdicts([*rows(measured_run(rates, kernels="portable"))])
    assert portable["500m prefill 512 / transformers"] is False
    assert portable["500m decode b1 / transformers"] is portable["500m decode b8 / transformers"] is True
    assert portable["500m decode b1 / memory"] is None
    exact = verdicts([*rows(measured_run(rates, kernels="portable", dtype="float32"))])
    assert exact["500m prefill 512 / transformers"] is True
    unasked = verdicts([*rows(measured_run(rates, kernels="torch"))])
    assert not any(unasked[case] is not None for case in exact if " / transformers" in case or " / memory" in case)


@pytest.mark.parametrize("size", bench.SIZES)
def test_every_size_has_bars_for_prompts_on_every_kind_of_cpu(size: str) -> None:
    cases = {case.name for case in PREFILLS}
    assert set(bars_of("avx512_bf16", "bfloat16", size).gemm) == cases
    assert set(bars_of("amx", "bfloat16", size).gemm) == (set() if size == "30m" else cases)


def test_first_requests_are_those_of_several_starts() -> None:
    run = measured_run({OWN: 97.0, TRANSFORMERS: 50.0})
    run.firsts[OWN] = [[0.105, 0.1, 0.1], [0.3, 0.1, 0.1], [0.104, 0.1, 0.2]]
    (row,) = (record for record in rows(run) if record.case == "500m first request / later, livescale")
    assert (row.ratio, row.ok) == (pytest.approx(1.05), True)
    run.firsts[OWN][0][0] = 0.2
    assert verdicts([*rows(run)])[row.case] is False


def test_what_attention_multiplies_counts_where_the_model_is_small() -> None:
    rates = {OWN: 79.0, TRANSFORMERS: 50.0}
    small, large = verdicts([*rows(measured_run(rates, "30m"))]), verdicts([*rows(measured_run(rates))])
    assert (small["30m prefill 512 / GEMM"], large["500m prefill 512 / GEMM"]) == (None, False)
    assert small["30m prefill 512 / GEMM, attention's as well"] is True  # 79 of 80
    assert small["30m prefill 2048 / GEMM, attention's as well"] is True
    assert large["500m prefill 512 / GEMM, attention's as well"] is None


def test_what_attention_multiplies_grows_with_the_square() -> None:
    config = small_model(2).config
    one, two = (attention_share(config, [length]) for length in (1, 1_999))
    assert two == pytest.approx(1_000 * one)
    assert attention_share(config, [512] * 4) == attention_share(config, [512])
    heads = config.num_attention_heads * config.head_dim
    assert one * sum(rows * columns for rows, columns in layer_shapes(config)) == pytest.approx(2 * heads)


def test_an_engine_whose_logits_are_wrong_is_not_ranked() -> None:
    run = measured_run({OWN: 97.0, TRANSFORMERS: 50.0, VLLM: 100.0})
    run.errors[VLLM] = 0.5
    found = verdicts([*rows(run)])
    assert found["500m prefill 512 / fastest peer (transformers, the only one)"] is None
    assert not any("vLLM" in case and "prefill" in case for case in found)
    assert rate_cells(run)[0][3] == "100 (wrong)"


def test_this_engine_has_to_be_right_too() -> None:
    run = measured_run({OWN: 97.0, TRANSFORMERS: 50.0})
    run.errors[OWN] = 0.04
    assert verdicts([*rows(run)])["500m error of logits, livescale"] is False


def test_one_row_is_compared_with_each_peer_and_with_memory() -> None:
    found = verdicts([*rows(measured_run({OWN: 97.0, TRANSFORMERS: 50.0, VLLM: 90.0, LLAMA: 100.0}))])
    assert found["500m decode b1 / vLLM"] is False
    assert found["500m decode b1 / llama.cpp"] is True
    assert found["500m decode b1 / transformers"] is None
    assert found["500m decode b1 / memory"] is True


def test_mixed_work_is_compared_with_the_same_tokens_apart() -> None:
    tbt, together = mixed_rows(measured_run({OWN: 1.0, TRANSFORMERS: 1.0}))
    assert tbt.ratio == pytest.approx(3.0)
    assert tbt.ok is False
    # 3200 tokens of 16 rows take 200 steps of 0.1 s, the prompts one second; together it was 20.6 s.
    assert together.ratio == pytest.approx(21.0 / 20.6)


def test_the_tail_is_that_of_all_rounds_and_one_slow_step_in_a_hundred_is_none() -> None:
    run = measured_run({OWN: 1.0, TRANSFORMERS: 1.0})
    alone, slow = Took([0.1] * 100, 10.0), Took([0.1] * 99 + [0.3] * 2, 10.5)
    run.mixed = [Mixed(alone, Took([1.0], 1.0), both, 1_600, 512) for both in (alone, slow)]
    assert next(mixed_rows(run)).ratio == pytest.approx(1.0)  # two of 201


@pytest.mark.parametrize(("rounds", "each"), [(1, 200), (3, 67)])
def test_there_are_enough_steps_for_a_tail_however_many_rounds(rounds: int, each: int) -> None:
    assert mixed_question(1, 100, rounds).steps == each


def test_a_tail_is_the_nearest_rank() -> None:
    assert p99([float(number) for number in range(200)]) == 197.0


def test_what_is_not_installed_is_said_in_its_column() -> None:
    run = measured_run({OWN: 97.0, TRANSFORMERS: 50.0})
    run.absent = {VLLM: "not installed", LLAMA: "failed"}
    assert rate_cells(run)[0] == ["prefill 128", "97", "50", "not installed", "failed"]
    assert not any(VLLM in record.case for record in values(run))


def test_the_report_names_the_bars_that_were_missed() -> None:
    run = measured_run({OWN: 85.0, TRANSFORMERS: 50.0})
    page = render_engine([run], [*rows(run)], 3, CONDITIONS)
    assert "Missed: " in page
    assert "Machine: AMD &lt;EPYC&gt;, 2 cores" in page
    assert "Warning: 7% of the CPU time was stolen" in page
    assert "The machine stood still during 2 samples, which were taken again; 9 count." in page
    assert "500m prefill 512 / GEMM" in page
    assert page.count("<svg") == 1


def test_what_is_kept_of_a_prompt_is_compared_with_nothing() -> None:
    cached, fetched = kept_rows(measured_run({OWN: 1.0, TRANSFORMERS: 1.0}))
    assert cached.case == "500m first token of 2048, 2032 of them in the KV cache / none"
    assert (cached.ratio, fetched.ratio) == pytest.approx((1 / 16, 3 / 32))


def test_an_error_of_logits_is_relative_to_their_spread_and_the_worst_row_counts() -> None:
    exact = np.array([0.0, 2.0] * 50, np.float32)
    off = exact + np.float32(0.5)
    assert relative_error([exact.tobytes(), off.tobytes()], [exact.tobytes()] * 2) == pytest.approx(0.5)
    assert relative_error([off[:-1].tobytes()], [exact.tobytes()]) == float("inf")
    assert relative_error([(off * np.nan).tobytes()], [exact.tobytes()]) == float("inf")


def test_a_layer_costs_what_more_layers_cost() -> None:
    cost = layer_cost(StepCost(1e-3, 0.4e-3), StepCost(1e-3 + (MANY - FEW) * 3e-4, 0.4e-3 + (MANY - FEW) * 1e-4))
    assert cost.layer == pytest.approx(3e-4)
    assert cost.outside == pytest.approx(2e-4)


def test_all_engines_are_asked_the_same_and_no_two_questions_alike() -> None:
    assert PREFILLS[3].question(1, 100) == PREFILLS[3].question(1, 100) != PREFILLS[3].question(2, 100)
    assert [len(prompt) for prompt in PREFILLS[3].question(1, 100).prompts] == [512] * 4


@pytest.mark.system
def test_this_engine_answers_everything_it_is_asked(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log, members_of(tiny("llama"), log) as members:
        member, ready = members.start(OWN_PROGRAM)
        assert ready.last_block is not None
        assert 0 < ready.last_block < ready.answering
        asked = prompts(1, 1_000, (200, 60))
        assert member.ask(Prefill(asked), Took).cpu > 0
        assert len(member.ask(Decode(asked[1:] * 3, 5), Took).steps) == 5
        mixed = member.ask(mixed_question(1, 1_000, 4), Mixed)
        assert len(mixed.alone.steps) == 50 <= len(mixed.both.steps)
        assert mixed.decoded >= 50 * 16
        assert mixed.prompted % 512 == 0 < mixed.prompted
        assert mixed.both.cpu > 0
        kept = member.ask(Keep(prompts(2, 1_000, (400,))[0]), Kept)
        assert min(kept.none.cpu, kept.cached.cpu, kept.fetched.cpu) > 0
        chosen = member.ask(Greedy(asked[0], 3), Chosen)
        assert [int(np.frombuffer(row, np.float32).argmax()) for row in chosen.logits] == chosen.tokens
        with pytest.raises(MemberFailed, match="does not answer CountPython"):
            member.ask(CountPython(8, 1), Took)


@pytest.mark.system
def test_a_process_that_ends_is_said_to_have_ended(tmp_path: Path) -> None:
    with (
        (tmp_path / "log").open("w") as log,
        members_of(tmp_path, log) as members,
        pytest.raises(MemberFailed, match="livescale ended"),
    ):
        members.start(OWN_PROGRAM)
    assert "config.json" in (tmp_path / "log").read_text()


def test_every_engine_has_the_settings_of_a_worker_for_its_memory(tmp_path: Path) -> None:
    tell = "import os; import livescale.load.peers.engine_process; print(os.environ['GLIBC_TUNABLES'], flush=True)"
    (tmp_path / "teller.py").write_text(tell)
    with (tmp_path / "log").open("w") as log, pytest.MonkeyPatch.context() as patch:
        patch.setattr("livescale.load.bench.engine.processes.ROOT", f"{ROOT}:{tmp_path}")
        for program in PROGRAMS[:2]:
            member = Member(replace(program, module="teller"), tmp_path, 0, "auto", log)
            with pytest.raises(MemberFailed, match="ended"):
                member.ready()
            member.end()
    told = (tmp_path / "log").read_text()
    assert told.count(WORKER_ENV["GLIBC_TUNABLES"]) == 2


def test_a_peer_is_installed_where_its_environment_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    peer = Program("peer", "livescale.load.peers.none", "peer_package")
    assert not peer.is_installed
    (tmp_path / ".peers/lib/python3.11/site-packages/peer_package").mkdir(parents=True)
    assert peer.is_installed
    assert peer.python == str(tmp_path / ".peers/bin/python")


@pytest.mark.slow
def test_it_prints_every_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "SIZES", {"30m": "tiny"})
    result = CliRunner().invoke(bench.engine, ["--sizes", "30m", "--rounds", "1", "--no-peers"])
    cases = [record["case"] for record in records_in(result.stdout)]
    expected = [*rows(measured_run({OWN: 1.0, TRANSFORMERS: 1.0}, "30m"))]
    assert {record.case for record in expected} <= set(cases), result.output
    assert "python of a layer, batch 8" in cases
    assert (tmp_path / "livescale-engine.html").exists()
