import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.shared.units import format_bit_rate, format_rate, format_size, parse_rate, parse_size


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100 Gbps", 12.5e9),
        ("100Gbps", 12.5e9),
        ("1.6 Tbps", 200e9),
        ("400 Gb/s", 50e9),
        ("900 GBps", 900e9),
        ("12.5 GB/s", 12.5e9),
        ("  5 MiB/s ", 5 * 2**20),
        ("8 bps", 1),
        (".5 kB/s", 500),
        ("1e3 MB/s", 1e9),
    ],
)
def test_rates_are_bytes_a_second(text: str, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("text", "size"), [("64 GiB", 64 * 2**30), ("80 GB", 80 * 10**9), ("1.5 KiB", 1536), ("7 B", 7)]
)
def test_sizes_are_bytes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (100, "100 has no unit; write for example 100 Gbps or 12.5 GB/s"),
        ("100", "100 has no unit"),
        ("100 gbps", "'gbps' in '100 gbps' is not a known unit; did you mean 'GBps' or 'Gbps'?"),
        ("12 Gbs", "did you mean 'Gbps'?"),
        ("100 parsecs", "'parsecs' in '100 parsecs' is not a known unit"),
        ("64 GiB", "did you mean 'GiBps'?"),
        ("0 Gbps", "must be more than zero"),
        ("-1 GB/s", "must be more than zero"),
        ("1e400 GB/s", "is out of bounds"),
        ("fast", "'fast' is not a number with its unit, such as 100 Gbps or 12.5 GB/s"),
        (True, "True is not a number with its unit"),
        (None, "None is not a number"),
        (["1 GB/s"], "is not a number"),
    ],
)
def test_what_is_no_rate_is_refused_with_the_remedy(value: object, said: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        parse_rate(value)
    assert said in str(refused.value)


def test_what_is_no_size_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="did you mean 'GB'"):
        parse_size("80 Gb")
    with pytest.raises(ValueError, match="must be more than zero"):
        parse_size("0.5 B")


def test_quantities_are_shown_as_their_field_shows_them() -> None:
    assert format_bit_rate(12.5e9) == "100 Gbps"
    assert format_bit_rate(200e9) == "1.6 Tbps"
    assert format_rate(12.5e9) == "12.5 GB/s"
    assert format_rate(0.25) == "0.25 B/s"
    assert format_size(64 * 2**30) == "64 GiB"
    assert format_size(2**40) == "1 TiB"
    assert format_size(80 * 10**9) == "80 GB"
    assert format_size(7) == "7 B"


@given(st.floats(1, 9e14))
def test_a_rate_that_is_shown_reads_as_the_same_to_four_digits(rate: float) -> None:
    assert parse_rate(format_rate(rate)) == pytest.approx(rate, rel=1e-3)
    assert parse_rate(format_bit_rate(rate)) == pytest.approx(rate, rel=1e-3)


@given(st.integers(1, 9 * 10**14))
def test_a_size_that_is_shown_reads_as_the_same_to_four_digits(size: int) -> None:
    assert parse_size(format_size(size)) == pytest.approx(size, rel=1e-3)
