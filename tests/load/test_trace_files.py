"""Reading published forms of traces, and refusing bad rows by file, line and column."""

from pathlib import Path

import pytest

from livescale.load.trace import Arrival, TraceError, Window, replay
from livescale.load.trace_files import read_trace

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "traces"


def write(directory: Path, text: str, name: str = "trace.csv") -> Path:
    path = directory / name
    path.write_text(text)
    return path


def test_azure(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
    )
    first, second = read_trace(write(tmp_path, text))
    assert first == Arrival(0.0, 374, 44)
    assert second.at == pytest.approx(4.314579, abs=1e-5)
    assert (second.prompt_tokens, second.output_tokens) == (396, 109)


def test_burstgpt_leaves_its_failed_requests_out(tmp_path: Path) -> None:
    text = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n"
        "45,ChatGPT,1087,0,1087,Conversation log\n"
        "118,GPT-4,417,276,693,API log\n"
    )
    assert read_trace(write(tmp_path, text)) == (Arrival(5.0, 472, 18), Arrival(118.0, 417, 276))


def test_mooncake(tmp_path: Path) -> None:
    text = (
        '{"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": [0, 1]}\n\n'
        '{"timestamp": 3000, "input_length": 7319, "output_length": 490, "hash_ids": [0, 2]}\n'
    )
    assert read_trace(write(tmp_path, text, "trace.jsonl")) == (Arrival(0.0, 6755, 500), Arrival(3.0, 7319, 490))


def test_plain_rows_are_sorted_by_arrival(tmp_path: Path) -> None:
    text = "arrival_s, prompt, output\n2.5,11,5\n0.8,1529,133\n"
    assert read_trace(write(tmp_path, text)) == (Arrival(0.8, 1529, 133), Arrival(2.5, 11, 5))


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("x,1,1", "arrival_s"),
        ("nan,1,1", "arrival_s"),
        ("-1,1,1", "arrival_s"),
        (",1,1", "arrival_s"),
        ("1,zero,1", "prompt"),
        ("1,0,1", "prompt"),
        ("1,2.5,1", "prompt"),
        ("1,1,-4", "output"),
        ("1,1", "output"),
    ],
)
def test_a_bad_row_is_refused_with_file_line_and_column(tmp_path: Path, row: str, column: str) -> None:
    path = write(tmp_path, f"arrival_s,prompt,output\n1,2,3\n{row}\n")
    with pytest.raises(TraceError, match=rf"trace\.csv, line 3, column '{column}': "):
        read_trace(path)


def test_a_bad_time_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n")
    with pytest.raises(TraceError, match="line 2, column 'TIMESTAMP': 'yesterday' is not a time"):
        read_trace(path)


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ('{"timestamp": 1, "input_length": "many", "output_length": 1}', "input_length"),
        ('{"timestamp": 1, "output_length": 1}', "input_length"),
        ('{"timestamp": 1, "input_length": 1, "output_length": 0}', "output_length"),
        ('{"timestamp": 1, "input', ""),
    ],
)
def test_a_bad_json_line_is_refused_by_line_and_field(tmp_path: Path, line: str, field: str) -> None:
    good = '{"timestamp": 0, "input_length": 1, "output_length": 1}'
    with pytest.raises(TraceError, match=rf"trace\.jsonl, line 2: .*{field}"):
        read_trace(write(tmp_path, f"{good}\n{line}\n", "trace.jsonl"))


def test_unknown_columns_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"unknown columns \['a', 'b'\].*ContextTokens.*arrival_s.*Mooncake"):
        read_trace(write(tmp_path, "a,b\n1,2\n"))


def test_an_empty_a_missing_and_a_binary_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no request in it"):
        read_trace(write(tmp_path, "arrival_s,prompt,output\n"))
    with pytest.raises(TraceError, match="not a readable trace"):
        read_trace(tmp_path / "absent.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(TraceError, match="not a readable trace"):
        read_trace(tmp_path / "binary.csv")


@pytest.mark.parametrize(
    ("name", "rows"),
    [("azure_code_2023.csv", 8819), ("azure_conv_2023.csv", 19366), ("mooncake_conversation.csv", None)],
)
def test_published_traces_are_read_whole(name: str, rows: int | None) -> None:
    path = PUBLISHED / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    trace = read_trace(path)
    assert len(trace) == (rows or len(path.read_text().splitlines()) - 1)
    tripled = replay(trace, Window(300, 360), 3.0, 0.1, seed=0)
    inside = sum(300 <= arrival.at < 360 for arrival in trace)
    assert len(tripled) == 3 * inside


def test_published_rows_without_outputs_are_refused() -> None:
    path = PUBLISHED / "burstgpt1_first500_reconstructed.csv"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    with pytest.raises(TraceError, match="unknown columns"):
        read_trace(path)
