"""Latencies: the figures that are published with the profiles come out, and bad files are refused."""

from pathlib import Path

import pytest

from livescale.shared.model.latency import Latency, Work, find_latency, shipped_latencies

# Milliseconds of one prompt of 1,024 to 8,192 tokens, and of a decode step of 32 rows at 1,024 tokens each, as the
# profiles have them; the fit is off by so much of them.
PROFILES = {
    "llama3-8b-a100": ((84, 167, 352, 829), 15.4, 0.07),
    "llama2-7b-a100": ((76, 157, 338, 804), 21.4, 0.07),
    "llama2-13b-a100": ((143, 274, 581, 1363), 35.9, 0.151),
    "llama2-70b-a100-tp4": ((226, 418, 837, 1826), 40.4, 0.091),
    "qwen2.5-72b-a100-tp4": ((232, 427, 855, 1861), 41.4, 0.089),
    "qwen2.5-72b-a800-tp4": ((243, 449, 898, 1948), 41.7, 0.085),
    "mistral-24b-a800-tp2": ((130, 242, 489, 1055), 22.9, 0.063),
    "llama2-7b-h800": ((25, 52, 123, 309), 13.1, 0.087),
    "llama2-70b-h800-tp4": ((89, 167, 349, 774), 22.4, 0.077),
}
LENGTHS = 1_024, 2_048, 4_096, 8_192
ROUND = Latency(source="made up", prefill=(10.0, 0.1, 1e-5), decode=(20.0, 0.5, 1e-3))


@pytest.mark.parametrize("name", PROFILES)
def test_a_shipped_latency_is_that_of_the_profile(name: str) -> None:
    prefill, decode, error = PROFILES[name]
    latency = find_latency(name)
    for length, milliseconds in zip(LENGTHS, prefill, strict=True):
        work = Work(prefill_tokens=length, prefill_squares=length**2)
        assert latency.seconds(work) * 1e3 == pytest.approx(milliseconds, rel=error)
    work = Work(decode_rows=32, decode_kv_tokens=32 * 1_024)
    assert latency.seconds(work) * 1e3 == pytest.approx(decode, rel=error)


def test_every_shipped_latency_is_compared_with_its_profile() -> None:
    assert shipped_latencies().keys() == PROFILES.keys()


@pytest.mark.parametrize(
    ("work", "milliseconds"),
    [
        (Work(prefill_tokens=1_000, prefill_squares=1_000_000), 10 + 100 + 10),
        (Work(prefill_tokens=1_000, prefill_squares=2 * 500_000), 10 + 100 + 10),
        (Work(decode_rows=4, decode_kv_tokens=2_000), 20 + 2 + 2),
        (Work(1_000, 1_000_000, decode_rows=4, decode_kv_tokens=2_000), 10 + 100 + 10 + 2 + 2),
    ],
)
def test_a_step_takes_what_the_formula_says(work: Work, milliseconds: float) -> None:
    assert ROUND.seconds(work) * 1e3 == pytest.approx(milliseconds)


def test_a_short_prompt_takes_no_less_than_a_decode_step() -> None:
    assert ROUND.seconds(Work(prefill_tokens=1, prefill_squares=1)) == pytest.approx(0.020)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("prefill: [1, 1, 1]\ndecode: [1, 1, 1]\n", "source is missing"),
        ("source: here\nprefill: [1, 1]\ndecode: [1, 1, 1]\n", "prefill"),
        ("source: here\nprefill: [1, -1, 1]\ndecode: [1, 1, 1]\n", r"prefill\[1\]"),
        ("source: here\nprefill: [1, 1, 1]\ndecode: [0, 0, 0]\n", "above zero"),
        ("source: here\nprefill: [1, 1, 1]\ndecode: [1, 1, 1]\nencode: []\n", "encode"),
        ("[", "not YAML"),
    ],
)
def test_a_file_that_says_too_little_or_nonsense_is_refused_by_name(tmp_path: Path, content: str, problem: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(content)
    with pytest.raises(ValueError, match=f"^engine-profile: {file}: .*{problem}"):
        find_latency(str(file))


def test_a_file_of_ones_own_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("source: here\nprefill: [10, 0.1, 1.0e-5]\ndecode: [20, 0.5, 1.0e-3]\n")
    assert find_latency(str(file)) == Latency(source="here", prefill=ROUND.prefill, decode=ROUND.decode)


def test_a_name_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"^engine-profile: there is no 'llama9'; .*one of llama3-8b-a100, "):
        find_latency("llama9")
    with pytest.raises(ValueError, match=r"^engine-profile: gone/mine\.yaml: No such file"):
        find_latency("gone/mine.yaml")
