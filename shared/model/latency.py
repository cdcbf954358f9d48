"""How long a model's step takes on a GPU: a formula for prefill and one for decode, fitted to profiles.

Latencies are found by name, among those that are shipped, or in a file with one of this machine's own.
"""

from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from livescale.shared.runtime.yaml_file import convert, names_file, read_yaml

# Time of a step outside its layers, about as for a model with 7 billion parameters.
EMBEDDING_SHARE = 0.002
HEAD_SHARE = 0.02

# Said wherever a modelled engine answers.
MADE_UP = "modelled engine: no real computation, tokens are made up"

# PCIe 4.0 x16 carries some 25 GB/s from pinned memory, and half of that from memory that is not, as that of KV which
# came. A core copies as much: 5 to 30 GB/s were measured in pieces of 2 to 32 MiB, on Zen 4.
COPY_GIGABYTES = 12.0  # a second

Milliseconds = Annotated[float, Meta(ge=0)]

SHIPPED = resources.files("livescale.shared") / "latencies.yaml"


@dataclass(frozen=True)
class Work:
    """What a step computes.

    Each prompt adds the square of its length to `prefill_squares`. Each row that decodes adds the number of tokens that
    it attends to to `decode_kv_tokens`.
    """

    prefill_tokens: int = 0
    prefill_squares: int = 0
    decode_rows: int = 0
    decode_kv_tokens: int = 0


class Latency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How long one model's steps take on one GPU, or on those that it is spread over, in milliseconds.

    `prefill`: for a step, for each token, for each token squared. `decode`: for a step, for each row, for each token in
    the KV cache. `source`: where the figures are from. `copy`: at how many GB/s KV that came is copied into the cache;
    profiles do not measure that.
    """

    source: str
    prefill: tuple[Milliseconds, Milliseconds, Milliseconds]
    decode: tuple[Milliseconds, Milliseconds, Milliseconds]
    copy: Annotated[float, Meta(gt=0)] = COPY_GIGABYTES

    def __post_init__(self) -> None:
        if not any(self.prefill) or not any(self.decode):
            raise ValueError("a step would take no time: give prefill and decode each a value above zero")

    def seconds(self, work: Work) -> float:
        """Seconds of a whole step. What a step takes as such is paid once, also where prompts and decodes share it."""
        step, row, kv_token = self.decode
        base = 0.0
        if work.prefill_tokens:
            prefill_step, token, square = self.prefill
            base = prefill_step + token * work.prefill_tokens + square * work.prefill_squares
        # All parameters are read once in any step, however few its rows.
        return (max(base, step) + row * work.decode_rows + kv_token * work.decode_kv_tokens) / 1e3

    def copy_seconds(self, size_bytes: int) -> float:
        """Seconds of a copy of so much KV into the cache."""
        return size_bytes / (self.copy * 1e9)


def find_latency(text: str) -> Latency:
    """The latency in a file, or the one that is shipped by this name. Raises ValueError."""
    if names_file(text):
        return _read(Path(text))
    shipped = shipped_latencies()
    if text not in shipped:
        raise ValueError(
            f"engine-profile: there is no {text!r}; give a file that `livescale profile` wrote, or one of "
            f"{', '.join(shipped)}"
        )
    return shipped[text]


@cache
def shipped_latencies() -> dict[str, Latency]:
    """The latencies that are shipped, by their names, which say model and GPU."""
    with resources.as_file(SHIPPED) as path:
        content = convert(read_yaml(path), dict[str, Latency])
    assert isinstance(content, dict)
    return content


def _read(path: Path) -> Latency:
    try:
        latency = convert(read_yaml(path), Latency)
    except ValueError as error:
        named = str(error).removeprefix(f"{path}: ")
        raise ValueError(f"engine-profile: {path}: {named}") from None
    assert isinstance(latency, Latency)
    return latency
