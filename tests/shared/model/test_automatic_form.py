from pathlib import Path
from typing import get_args

import pytest

from livescale.shared.messages.parameters import DType, Layout
from livescale.shared.model import automatic_form
from livescale.shared.model.automatic_form import choose_form, find_form, has_compiled_kernels


@pytest.mark.parametrize(
    ("cpuinfo", "dtype"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_bf16\n", "bfloat16"),
        ("flags\t\t: fpu amx_bf16 amx_tile\n", "bfloat16"),
        ("Features\t: fp asimd bf16\n", "bfloat16"),
        ("flags\t\t: fpu avx2 avx512f\n", "float32"),
        ("model name\t: avx512_bf16\n", "float32"),
        ("", "float32"),
    ],
)
def test_bfloat16_is_chosen_where_something_computes_with_it(cpuinfo: str, dtype: str) -> None:
    assert choose_form(on_gpus=False, cpuinfo=cpuinfo, compiled=False) == (dtype, "panels")
    assert choose_form(on_gpus=False, cpuinfo=cpuinfo, compiled=True) == ("bfloat16", "panels")


def test_on_gpus_models_are_served_in_bfloat16_and_nothing_lies_in_panels() -> None:
    assert choose_form(on_gpus=True, cpuinfo="", compiled=False) == ("bfloat16", "plain")


def test_kernels_are_looked_for_where_they_are_installed() -> None:
    from livescale.services.worker.engine.kernels.variants import find_compiled

    assert has_compiled_kernels() == (find_compiled() is not None)


@pytest.mark.parametrize(("gpus", "form"), [(1, ("float32", "panels")), (2, ("bfloat16", "plain"))])
def test_a_form_that_is_auto_is_that_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpus: int, form: tuple[DType, Layout]
) -> None:
    monkeypatch.setattr(automatic_form, "count_gpus", lambda: gpus)
    monkeypatch.setattr(automatic_form, "has_compiled_kernels", lambda: False)
    monkeypatch.setattr(automatic_form, "CPUINFO", tmp_path / "no such file")
    assert find_form("auto", "auto") == form
    for dtype in get_args(DType):
        assert find_form(dtype) == (dtype, form[1])
    for layout in get_args(Layout):
        assert find_form("auto", layout) == (form[0], layout)
