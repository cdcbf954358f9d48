"""Which ratios `livescale bench models` has a bar for."""

import pytest

from livescale.load.bench.models.rows import (
    against_bfloat16,
    against_dense,
    against_transformers,
    arena_row,
    chosen_quantized,
    error_rows,
    fp8_kv_rows,
    matrices_row,
    scale_rows,
)


@pytest.mark.parametrize(
    ("kernels", "bars"),
    [("amx", (1.2, 1.5)), ("avx512_bf16", (1.2, 1.5)), ("portable", (1.0, 1.0)), ("torch", (1.0, 1.0))],
)
def test_the_bar_to_transformers_depends_on_kernels_and_case(kernels: str, bars: tuple[float, float]) -> None:
    ours = {"prefill 512": [10.0, 14.0, 90.0], "decode b8": [14.0]}
    records = list(against_transformers("olmoe", ours, {"prefill 512": [10.0], "decode b8": [10.0]}, kernels))
    assert [(one.ratio, one.bar, one.ok) for one in records] == [(1.4, bar, bar < 1.4) for bar in bars]


def test_how_fast_a_row_passes_quantized_matrices_is_told_without_a_bar() -> None:
    row = matrices_row("qwen2 in int4", [10e9, 11e9, 30e9], [20e9, 22e9, 21e9])
    assert (row.value, row.against, row.bar, row.ok) == (11.0, 21.0, None, None)


def test_experts_are_compared_with_the_dense_model_where_both_were_measured() -> None:
    rates = {"mixtral": {"prefill 512": [8.0]}, "olmoe": {"prefill 512": [5.0]}, "qwen2": {"prefill 512": [10.0]}}
    records = list(against_dense("prefill 512", rates))
    assert [(one.ratio, one.bar, one.ok) for one in records] == [(0.8, 0.7, True), (0.5, None, None)]
    assert not list(against_dense("prefill 512", {"mixtral": rates["mixtral"]}))


def test_one_quantized_model_is_measured_where_it_is_named() -> None:
    assert chosen_quantized(["llama", "qwen2"], ["kv", "int8"]) == [("qwen2", "int8")]
    assert chosen_quantized(["qwen2"], ["bfloat16"]) == [("qwen2", how) for how in ("int4", "int8", "fp8")]
    assert not chosen_quantized(["qwen2"], ["mxfp4", "scales"])


def test_quantized_models_are_compared_with_bfloat16_by_the_bar_of_each_case() -> None:
    ours, wide = {"decode b1": [9.0, 19.0, 30.0], "prefill 512": [9.0]}, {"decode b1": [10.0], "prefill 512": [10.0]}
    records = list(against_bfloat16("qwen2", "int4", ours, wide))
    assert [(one.ratio, one.bar, one.ok) for one in records] == [(1.9, 2.0, False), (0.9, 0.85, True)]
    assert [one.bar for one in against_bfloat16("gpt_oss", "mxfp4", ours, wide)] == [None, None]


@pytest.mark.parametrize(("most", "kept"), [(0.029, True), (0.031, False)])
def test_the_median_row_s_error_has_a_bar_and_a_few_rows_that_stray_far_are_told(most: float, kept: bool) -> None:
    median_row, mean_square = error_rows("olmoe", [most] * 9 + [0.5], [0.02] * 9 + [0.03])
    assert (median_row.against, median_row.bar, median_row.ok) == (0.02, 1.5, kept)
    assert mean_square.ratio == pytest.approx(7.5, abs=0.3)
    assert mean_square.ok is None


@pytest.mark.parametrize(("arena_bytes", "kept"), [(103, True), (104, False)])
def test_a_model_takes_hardly_more_bytes_in_the_arena_than_in_its_files(arena_bytes: int, kept: bool) -> None:
    assert arena_row("qwen2 in int4", arena_bytes, 100).ok is kept


@pytest.mark.parametrize(("seconds", "kept"), [(3.2, True), (3.4, False)])
def test_a_scale_out_of_fewer_bytes_takes_as_much_less_time(seconds: float, kept: bool) -> None:
    times, over_bytes = scale_rows("qwen2 in int4", (300, seconds), (1_000, 10.0))
    assert (times.value, times.against, times.ok) == (seconds, 10.0, None)
    assert (over_bytes.against, over_bytes.bar, over_bytes.ok) == (0.3, 1.1, kept)


def test_kv_in_fp8_is_told_without_a_bar() -> None:
    rows = list(fp8_kv_rows("qwen2", {"decode b8": [9.0]}, {"decode b8": [10.0]}, 50, 100))
    assert [(one.ratio, one.ok) for one in rows] == [(0.5, None), (0.9, None)]
