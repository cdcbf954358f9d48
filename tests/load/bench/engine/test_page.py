from livescale.load.bench.engine.page import rate_cells, render_engine
from livescale.load.bench.engine.rows import (
    LLAMA,
    OWN,
    TRANSFORMERS,
    VLLM,
    rows,
    values,
)
from tests.load.bench.bench_output import CONDITIONS
from tests.load.bench.engine.runs import measured_run


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
    assert "2 samples were disturbed, mostly by stalls, and taken again; 9 count." in page
    assert "500m prefill 512 / GEMM" in page
    assert page.count("<svg") == 1
