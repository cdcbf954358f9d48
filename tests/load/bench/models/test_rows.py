"""Which ratios `livescale bench models` has a bar for."""

import pytest

from livescale.load.bench.models.rows import against_bfloat16, against_dense, against_transformers


@pytest.mark.parametrize(("kernels", "bar"), [("amx", 1.5), ("avx512_bf16", 1.5), ("portable", 1.0), ("torch", 1.0)])
def test_the_bar_to_transformers_depends_on_the_kernels(kernels: str, bar: float) -> None:
    ours = {"prefill 512": [10.0, 14.0, 90.0], "decode b8": [9.0]}
    records = list(against_transformers("olmoe", ours, {"prefill 512": [10.0], "decode b8": [10.0]}, kernels))
    assert [(one.ratio, one.bar, one.ok) for one in records] == [(1.4, bar, bar == 1.0), (0.9, bar, False)]


def test_experts_are_compared_with_the_dense_model_where_both_were_measured() -> None:
    rates = {"mixtral": {"prefill 512": [8.0]}, "olmoe": {"prefill 512": [5.0]}, "qwen2": {"prefill 512": [10.0]}}
    records = list(against_dense("prefill 512", rates))
    assert [(one.ratio, one.bar, one.ok) for one in records] == [(0.8, 0.7, True), (0.5, None, None)]
    assert not list(against_dense("prefill 512", {"mixtral": rates["mixtral"]}))


def test_quantized_models_are_compared_with_bfloat16_by_the_bar_of_each_case() -> None:
    ours, wide = {"decode b1": [9.0, 19.0, 30.0], "prefill 512": [9.0]}, {"decode b1": [10.0], "prefill 512": [10.0]}
    records = list(against_bfloat16("qwen2", "int4", ours, wide))
    assert [(one.ratio, one.bar, one.ok) for one in records] == [(1.9, 2.0, False), (0.9, 0.85, True)]
    assert [one.bar for one in against_bfloat16("gpt_oss", "mxfp4", ours, wide)] == [None, None]
