"""Rotary position embedding (RoFormer) as checkpoints describe it: how fast each pair of a head's numbers rotates.

Both spellings of transformers' keys are read: `rope_parameters`, and `rope_theta` with `rope_scaling`. Pure.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import repeat
from math import ceil, floor, log, pi, sqrt
from typing import Any

import msgspec

from livescale.shared.messages.layers import RopeScaling
from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile, is_number

SUPPORTED = "'default', 'linear', 'llama3', 'yarn' and 'longrope'"
ORIGINAL = "original_max_position_embeddings"
# What may be said of each kind of rotation, besides what may be said of all.
OF_ALL = {"rope_type", "type", "rope_theta", "partial_rotary_factor", ORIGINAL}
KNOWN = {
    "default": set[str](),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor"},
    "yarn": {
        *("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate"),
        "finetuned",
    },
    "longrope": {"factor", "attention_factor", "short_factor", "long_factor"},
}
ROTATED = ("q_proj", "k_proj", "q_norm", "k_norm")


@dataclass(frozen=True)
class Rotation:
    """How heads rotate: in their first `rotary_dim` numbers, 0 is all.

    `scaling` is Llama 3's; `frequencies` are those of any other rule. Without both they follow from `theta`. Where no
    request has more than `short_positions`, heads rotate by `short_frequencies`. Scores are multiplied by
    `score_factor`, and what rotates of queries and keys by `turning_scale`.
    """

    theta: float
    rotary_dim: int = 0
    scaling: RopeScaling | None = None
    frequencies: tuple[float, ...] | None = None
    score_factor: float = 1.0
    turning_scale: float = 1.0
    short_frequencies: tuple[float, ...] | None = None
    short_positions: int = 0

    def all_frequencies(self, head_dim: int) -> tuple[float, ...]:
        """The frequencies of all pairs of a head, also where they follow from `theta`."""
        if self.scaling is not None or self.short_positions:
            kind = "longrope" if self.scaling is None else "llama3"
            raise CheckpointError(f"rope_type {kind!r} for a part of the layers is not supported")
        return inverse_frequencies(self.theta, head_dim) if self.frequencies is None else self.frequencies


@dataclass(frozen=True)
class RotationReader:
    """Reads rotations of heads of `head_dim` numbers in models for `positions` positions.

    `theta` is taken where the file says none. `partial` is the share of a head that rotates where the file says none;
    with None the architecture rotates whole heads only.
    """

    config: ConfigFile
    head_dim: int
    positions: int
    theta: float = 10_000.0
    partial: float | None = None

    def read(self) -> Rotation:
        """The rotation of a model whose layers all rotate alike."""
        return self.rotation(self.values())

    def values(self) -> dict[str, Any]:
        """What the file says of the rotation, in the newer spelling. Raises CheckpointError where it differs by
        layer."""
        scaling, values = self.config.mapping("rope_scaling"), self.config.mapping("rope_parameters")
        theta = {"rope_theta": self.config.number("rope_theta", self.theta)}
        values = theta | (scaling or values)
        if any(isinstance(value, dict) for value in values.values()):
            raise CheckpointError("rope_parameters that differ by layer are not known of this architecture")
        return values

    def read_of(self, layer_type: str, theta_key: str = "rope_theta", is_scaled: bool = True) -> Rotation:
        """The rotation of layers of one type. In the old spelling its theta is at `theta_key`, and `rope_scaling` is
        about it where `is_scaled`. `rope_parameters` has an object for each type; what stands beside these is of no
        layer, as in transformers."""
        theta = {"rope_theta": self.config.number(theta_key, self.theta)}
        values, scaling = self.config.mapping("rope_parameters"), self.config.mapping("rope_scaling")
        own = {} if values.get(layer_type) is None else values[layer_type]
        if not isinstance(own, dict):
            raise CheckpointError(f"rope_parameters: {layer_type} is {str(own)[:80]!r}, must be an object")
        return self.rotation(theta | own | (scaling if is_scaled else {}))

    def rotation(self, values: dict[str, Any]) -> Rotation:
        """The rotation that an object of `rope_parameters` describes."""
        theta, rotary_dim = number(values, "rope_theta", self.theta), self._rotary_dim(values)
        if theta < 1:
            raise CheckpointError(f"rope_theta is {theta}, must be at least 1")
        part = 0 if rotary_dim == self.head_dim else rotary_dim
        kind = values.get("rope_type", values.get("type", "default"))
        kind = "longrope" if kind == "su" else kind  # its name before it was published
        _refuse_unknown(kind, values)
        match kind:
            case "default" if not part:
                return Rotation(theta)
            case "default":
                return Rotation(theta, part, frequencies=self._with_still(inverse_frequencies(theta, rotary_dim)))
            case "linear":
                factor = number(values, "factor")
                slower = tuple(rounded(one / factor) for one in inverse_frequencies(theta, rotary_dim))
                return Rotation(theta, part, frequencies=self._with_still(slower))
            case "llama3" if not part:
                return Rotation(theta, scaling=self._llama3(values))
            case "yarn" if not part:
                return self._yarn(theta, values)
            case "longrope":
                return self._longrope(theta, part, values)
            case _:
                raise CheckpointError(f"rope_type {str(kind)[:40]!r} is not supported; supported are {SUPPORTED}")

    def _rotary_dim(self, values: dict[str, Any]) -> int:
        default = self.config.number("partial_rotary_factor", self.partial or 1.0)
        share = number(values, "partial_rotary_factor", default)
        rotary_dim = int(self.head_dim * share)
        if share != 1.0 and self.partial is None:
            raise CheckpointError(f"partial_rotary_factor is {share}, and this architecture rotates whole heads")
        if not 2 <= rotary_dim <= self.head_dim or rotary_dim % 2:
            raise CheckpointError(f"partial_rotary_factor is {share}, which is {rotary_dim} of {self.head_dim} numbers")
        return rotary_dim

    def _with_still(self, turning: tuple[float, ...]) -> tuple[float, ...]:
        return (*turning, *[0.0] * (self.head_dim // 2 - len(turning)))

    def _original(self, values: dict[str, Any]) -> dict[str, Any]:
        """`values` with the length that the model was trained with before its rotation was scaled."""
        own = self.config.whole(ORIGINAL, 0)
        return {ORIGINAL: self.positions} | values | ({ORIGINAL: own} if own else {})

    def _llama3(self, values: dict[str, Any]) -> RopeScaling:
        values = self._original(values)
        known = {name: values[name] for name in RopeScaling.__struct_fields__ if name in values}
        try:
            return msgspec.convert(known, RopeScaling)
        except msgspec.ValidationError as error:
            raise CheckpointError(f"llama3 RoPE scaling: {error}") from None

    def _yarn(self, theta: float, values: dict[str, Any]) -> Rotation:
        """YaRN (Peng et al.): fast pairs are kept, slow ones stretched by `factor`, those between blended."""
        if theta == 1:
            raise CheckpointError("rope_type 'yarn' with rope_theta 1 is not supported")
        original = number(self._original(values), ORIGINAL)
        factor = number(values, "factor", self.positions / original)
        first, last = (
            self.head_dim * log(original / (number(values, key, turns) * 2 * pi)) / (2 * log(theta))
            for key, turns in (("beta_fast", 32.0), ("beta_slow", 1.0))
        )
        if values.get("truncate", True):
            first, last = floor(first), ceil(last)
        first, last = max(first, 0), min(last, self.head_dim - 1)
        last = last + 0.001 if first == last else last
        made = []
        for pair, kept in enumerate(inverse_frequencies(theta, self.head_dim)):
            stretched = min(max((pair - first) / (last - first), 0.0), 1.0)
            made.append(rounded(kept / factor * stretched + kept * (1 - stretched)))
        # Transformers multiplies queries and keys, so that scores are multiplied twice.
        louder = number(values, "attention_factor", _default_louder(values, factor))
        return Rotation(theta, frequencies=tuple(made), score_factor=louder * louder)

    def _longrope(self, theta: float, part: int, values: dict[str, Any]) -> Rotation:
        """LongRoPE (Ding et al.): each pair is slower by a factor of its own, of which there are two sets."""
        original, dim = number(self._original(values), ORIGINAL), part or self.head_dim
        short, long = (
            self._with_still(inverse_frequencies(theta, dim, _factors(values, key, dim // 2)))
            for key in ("short_factor", "long_factor")
        )
        factor = number(values, "factor", self.positions / original)
        louder = sqrt(1 + log(factor) / log(original)) if factor > 1 < original else 1.0
        louder = number(values, "attention_factor", louder)
        return Rotation(theta, part, None, long, 1.0, louder, short, int(original))


def _refuse_unknown(kind: object, values: Mapping[str, Any]) -> None:
    """Raise CheckpointError for what this kind of rotation does not know, by name."""
    known = OF_ALL | KNOWN.get(str(kind), set(values))
    unknown = sorted(key for key, value in values.items() if key not in known and value is not None)
    if unknown:
        raise CheckpointError(
            f"{unknown[0][:80]!r} is not known of rope_type {str(kind)[:40]!r}; remove it from config.json if the "
            "model computes the same without it"
        )


def _factors(values: Mapping[str, Any], key: str, count: int) -> list[float]:
    factors = values.get(key)
    if not isinstance(factors, list) or len(factors) != count:
        raise CheckpointError(f"{key} must be a list of {count} numbers, one for each pair that rotates")
    each = [rounded(number({key: factor}, key)) for factor in factors]
    if min(each) < 0.1:
        raise CheckpointError(f"{key} has {min(each):g}, must be at least 0.1")
    return each


def _default_louder(values: dict[str, Any], factor: float) -> float:
    """YaRN's factor of queries, and of keys; where both `mscale` are given, that of the part which rotates alone."""
    stretched, shares = log(max(factor, 1.0)), [values.get(key) for key in ("mscale", "mscale_all_dim")]
    if not all(shares):
        return 0.1 * stretched + 1.0
    own, all_dim = (0.1 * number(values, key) * stretched + 1.0 for key in ("mscale", "mscale_all_dim"))
    return own / all_dim


def inverse_frequencies(theta: float, rotary_dim: int, factors: Iterable[float] = repeat(1.0)) -> tuple[float, ...]:
    """Radians per position of each pair, slower by its factor, rounded to float32 as the models were trained with."""
    powers = [rounded(theta ** rounded(i / rotary_dim)) for i in range(0, rotary_dim, 2)]
    return tuple(rounded(1.0 / rounded(factor * power)) for power, factor in zip(powers, factors, strict=False))


def rounded(number: float) -> float:
    """Return the nearest number that float32 has."""
    (nearest,) = struct.unpack("f", struct.pack("f", number))
    return float(nearest)


def number(values: dict[str, Any], key: str, default: float | None = None) -> float:
    """A number of an object. Raises CheckpointError where it is none, or out of any bounds."""
    value: Any = default if values.get(key) is None else values[key]
    if not is_number(value) or not 1e-6 <= value <= 1e15:
        raise CheckpointError(f"{key} is {str(value)[:80]!r}, must be a number above zero")
    return float(value)


def pair_order(head_dim: int, rotary_dim: int, interleaved: bool) -> list[int]:
    """Which number of a checkpoint's head is at each place of ours, where the numbers of a pair are half a head
    apart."""
    turning = rotary_dim or head_dim
    step, second = (2, 1) if interleaved else (1, turning // 2)
    firsts = [step * pair for pair in range(turning // 2)]
    still = list(range(turning, head_dim))
    half = len(still) // 2
    return [*firsts, *still[:half], *(first + second for first in firsts), *still[half:]]


def head_orders(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Which number of a checkpoint's head is at each place of ours, by the last part of the names of the matrices and
    norms whose heads have another order."""
    latent = config.latent
    if latent is None:
        order = pair_order(config.head_dim, config.rotary_dim, config.interleaved)
        return dict.fromkeys(ROTATED, tuple(order)) if order != sorted(order) else {}
    if not config.interleaved:
        return {}
    turning = pair_order(latent.qk_rope_head_dim, 0, config.interleaved)
    still = dict.fromkeys(("q_proj", "q_b_proj"), latent.qk_nope_head_dim)
    still["kv_a_proj_with_mqa"] = latent.kv_lora_rank
    return {name: (*range(count), *(count + one for one in turning)) for name, count in still.items()}
