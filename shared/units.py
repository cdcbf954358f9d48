"""Sizes and rates as people write them: `64 GiB`, `100 Gbps`, `12.5 GB/s`. Here they are bytes and bytes a second."""

import difflib
import re
from collections.abc import Iterable, Mapping

DECIMAL: Mapping[str, float] = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
BINARY: Mapping[str, float] = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
SIZES: Mapping[str, float] = {f"{prefix}B": factor for prefix, factor in {**DECIMAL, **BINARY}.items()}
RATES: Mapping[str, float] = {
    **{unit + per: factor for per in ("/s", "ps") for unit, factor in SIZES.items()},
    **{f"{prefix}b{per}": factor / 8 for per in ("/s", "ps") for prefix, factor in DECIMAL.items()},
}

QUANTITY = re.compile(r"\s*([+-]?[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(.*?)\s*")


class Size(int):
    """A number of bytes, which files give with its unit."""


class ByteRate(float):
    """A number of bytes a second, which files give with its unit."""


def parse_size(value: object) -> Size:
    """Read a size: `64 GiB`, `80 GB`. Raises ValueError, which says how to write it."""
    return Size(parse_quantity(value, SIZES, "64 GiB"))


def parse_rate(value: object) -> ByteRate:
    """Read a rate: `100 Gbps`, `12.5 GB/s`. Raises ValueError, which says how to write it."""
    return ByteRate(parse_quantity(value, RATES, "100 Gbps or 12.5 GB/s"))


def parse_quantity(value: object, units: Mapping[str, float], example: str) -> float:
    match = QUANTITY.fullmatch(str(value))
    if match is None:
        raise ValueError(f"{value!r} is not a number with its unit, such as {example}")
    number, unit = match.groups()
    if not unit:
        raise ValueError(f"{value} has no unit; write for example {example}")
    if unit not in units:
        raise ValueError(f"{unit!r} in {value!r} is not a known unit; {suggest(unit, units) or f'write {example}'}")
    amount = float(number) * units[unit]
    if not 1 <= amount <= 1e15:
        raise ValueError(f"{value!r} is out of bounds; it must be more than zero and less than a petabyte")
    return amount


def suggest(unit: str, units: Iterable[str]) -> str:
    """The units that a wrong one may mean; all that differ from it by case, as `gb/s` may be bits or bytes."""
    near = [each for each in units if each.casefold() == unit.casefold()]
    near = near or difflib.get_close_matches(unit, units, n=1, cutoff=0.4)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else ""


def format_size(size_bytes: int) -> str:
    """A size for people: `64 GiB` where binary units alone say it exactly, else `80 GB`."""
    is_binary = size_bytes % 2**20 == 0 and size_bytes % 10**6 != 0
    return shorten(size_bytes, BINARY if is_binary else DECIMAL, "B")


def format_rate(rate: float) -> str:
    """A rate in bytes a second as memory and disks are described: `12.5 GB/s`."""
    return shorten(rate, DECIMAL, "B/s")


def format_bit_rate(rate: float) -> str:
    """A rate in bytes a second as networks are described: `100 Gbps`."""
    return shorten(rate * 8, DECIMAL, "bps")


def shorten(amount: float, prefixes: Mapping[str, float], unit: str) -> str:
    """An amount in four digits, with the largest prefix that leaves at least one digit before the point."""
    prefix = max((each for each in prefixes if prefixes[each] <= amount), key=prefixes.__getitem__, default="")
    return f"{amount / prefixes.get(prefix, 1):.4g} {prefix}{unit}"
