"""`livescale bench engine`: what it says of what was measured, and engines in processes of their own."""

from collections.abc import Sequence

import pytest

from livescale.load.bench.engine import command as bench
from livescale.load.bench.engine.cases import PREFILLS
from livescale.load.bench.engine.page import rate_cells
from livescale.load.bench.engine.rows import (
    LLAMA,
    OWN,
    TRANSFORMERS,
    VLLM,
    bars_of,
    kept_rows,
    mixed_rows,
    p99,
    rows,
)
from livescale.load.bench.record import Record
from livescale.load.peers.protocol import Mixed, StepSeconds
from tests.load.bench.engine.runs import measured_run


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
    alone, slow = StepSeconds([0.1] * 100, 10.0), StepSeconds([0.1] * 99 + [0.3] * 2, 10.5)
    run.mixed = [Mixed(alone, StepSeconds([1.0], 1.0), both, 1_600, 512) for both in (alone, slow)]
    assert next(mixed_rows(run)).ratio == pytest.approx(1.0)  # two of 201


def test_a_tail_is_the_nearest_rank() -> None:
    assert p99([float(number) for number in range(200)]) == 197.0


def test_what_is_kept_of_a_prompt_is_compared_with_nothing() -> None:
    cached, fetched = kept_rows(measured_run({OWN: 1.0, TRANSFORMERS: 1.0}))
    assert cached.case == "500m first token of 2048, 2032 of them in the KV cache / none"
    assert (cached.ratio, fetched.ratio) == pytest.approx((1 / 16, 3 / 32))
