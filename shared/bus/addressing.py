"""Patterns with named holes (`hb.{service}.{id}`) <-> subjects of the bus; names of buckets."""

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from urllib.parse import quote, unquote

HOLE = re.compile(r"\{(\w+)\}")


@lru_cache(maxsize=512)
def hole_names(pattern: str) -> tuple[str, ...]:
    return tuple(HOLE.findall(pattern))


def fill(pattern: str, holes: Mapping[str, str]) -> str:
    """The subject to send to. Raises ValueError for a hole that is missing, empty or unknown."""
    return _filled(pattern, tuple(holes.items()))


def fill_wildcards(pattern: str, holes: Mapping[str, str]) -> str:
    """The subject to listen on: a hole that is left out matches anything. Raises ValueError for an unknown hole."""
    unknown = sorted(set(holes) - set(hole_names(pattern)))
    if unknown:
        raise ValueError(f"subject {pattern} has no {', '.join(unknown)}")
    return HOLE.sub(lambda match: _token(holes[match[1]]) if match[1] in holes else "*", pattern)


@lru_cache(maxsize=4096)
def holes_of(pattern: str, subject: str) -> Mapping[str, str]:
    """The values of the pattern's holes in a subject that matches it."""
    pairs = zip(pattern.split("."), subject.split("."), strict=False)
    return MappingProxyType({part[1:-1]: unquote(token) for part, token in pairs if part.startswith("{")})


@lru_cache(maxsize=65536)
def matches(wanted: str, subject: str) -> bool:
    """Whether a subscription to `wanted` (with `*` and a trailing `>`) gets `subject`."""
    parts, tokens = wanted.split("."), subject.split(".")
    if parts[-1] == ">":
        parts = parts[:-1]
        if len(tokens) <= len(parts):
            return False
        tokens = tokens[: len(parts)]
    return len(parts) == len(tokens) and all(p in ("*", t) for p, t in zip(parts, tokens, strict=True))


def bucket_name(namespace: str, name: str = "") -> str:
    """The name of a system's bucket of this name on the server; the one without is for its state."""
    return f"livescale-{namespace}-{name}" if name else f"livescale-{namespace}"


@lru_cache(maxsize=4096)
def _filled(pattern: str, values: tuple[tuple[str, str], ...]) -> str:
    holes = dict(values)
    missing = [name for name in hole_names(pattern) if not holes.get(name)]
    if missing:
        raise ValueError(f"subject {pattern} needs {', '.join(missing)}")
    return fill_wildcards(pattern, holes)


def _token(value: str) -> str:
    # Model names may hold dots and slashes, which would split the subject.
    return quote(value, safe="").replace(".", "%2E")
