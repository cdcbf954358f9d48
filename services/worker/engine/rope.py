"""Rotary position embedding (RoFormer) in the form of Hugging Face's Llama: the two halves of a head rotate
together."""

from math import pi

import torch

from livescale.services.worker.engine.kernels.variants import TYPES, Kernels
from livescale.services.worker.engine.parameters import DTYPES
from livescale.shared.messages.layers import RopeScaling
from livescale.shared.messages.parameters import LayerKind, ModelConfig

# Torch's tables are made for a multiple of this many positions: vector kernels and their scalar tails differ in the
# last bit, and tables of different lengths must not differ anywhere.
TABLE_STEP = 1_024


class RopeTable:
    """Cosines and signed sines `[position, 1, head_dim]`, the same for every head, times `scale` where a pair rotates.

    The compiled `kernels` make the same tables on every CPU; torch's cosines differ with a CPU's instructions.
    """

    def __init__(
        self,
        frequencies: torch.Tensor,
        positions: int,
        dtype: torch.dtype,
        device: torch.device,
        kernels: Kernels | None = None,
        scale: float = 1.0,
    ) -> None:
        made = torch.float32 if scale != 1.0 else dtype  # so that numbers are rounded once
        cosines, sines = (
            _tables(frequencies, positions, made, device)
            if kernels is None
            else _compiled_tables(kernels, frequencies, positions, made)
        )
        if scale != 1.0:
            factors = torch.where(frequencies != 0, scale, 1.0).repeat(2).to(device)
            cosines, sines = ((table * factors).to(dtype) for table in (cosines, sines))
        self.cosines, self.sines = cosines.unsqueeze(1), sines.unsqueeze(1)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines `[row, 1, head_dim]` of `positions` `[row]`."""
        return self.cosines[positions], self.sines[positions]


def rope_tables(
    config: ModelConfig, positions: int, dtype: torch.dtype, device: torch.device, kernels: Kernels | None = None
) -> list[RopeTable]:
    """The table of each layer, of an instance whose requests have so many positions at most; layers that rotate alike
    share one."""
    made: dict[LayerKind, RopeTable] = {}
    kinds = [_rotating(config, config.kind(layer), positions) for layer in range(config.num_hidden_layers)]
    for kind in kinds:
        if kind not in made:
            frequencies = inverse_frequencies(config, kind)
            made[kind] = RopeTable(frequencies, positions, dtype, device, kernels, kind.turning_scale)
    return [made[kind] for kind in kinds]


def _rotating(config: ModelConfig, kind: LayerKind, positions: int) -> LayerKind:
    """What layers of this kind have to do with rotation, where no request has more than these positions."""
    is_short = kind.short_frequencies is not None and positions <= config.short_positions
    frequencies = kind.short_frequencies if is_short else kind.frequencies
    return LayerKind(frequencies=frequencies, turning_scale=kind.turning_scale)


def turn(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> None:
    """Rotate `heads` `[row, head, head_dim]` in place."""
    swapped = heads.roll(heads.shape[-1] // 2, -1)
    heads.mul_(cosines).addcmul_(swapped, sines)


def _tables(
    frequencies: torch.Tensor, positions: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    steps = torch.arange(-(-positions // TABLE_STEP) * TABLE_STEP).float()
    angles = torch.outer(steps, frequencies)
    cosines, sines = angles.cos(), angles.sin()
    return torch.cat((cosines, cosines), dim=1).to(device, dtype), torch.cat((-sines, sines), dim=1).to(device, dtype)


def _compiled_tables(
    kernels: Kernels, frequencies: torch.Tensor, positions: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    half = len(frequencies)
    cosines, sines = (torch.empty(positions, 2 * half, dtype=dtype) for _ in range(2))
    tables = cosines.data_ptr(), sines.data_ptr()
    kernels.make_rope_tables(TYPES[DTYPES[dtype]], frequencies.data_ptr(), half, positions, *tables)
    return cosines, sines


def inverse_frequencies(config: ModelConfig, kind: LayerKind) -> torch.Tensor:
    """Radians per position of layers of this kind, `[head_dim / 2]`, in float32 as the models were trained with."""
    if kind.frequencies is not None:
        return torch.tensor(kind.frequencies, dtype=torch.float32)
    # Python's powers, rounded to float32, are the same everywhere; torch's are not.
    exponents = torch.arange(0, config.head_dim, 2).float() / config.head_dim
    powers = torch.tensor([config.rope_theta**exponent for exponent in exponents.tolist()]).float()
    frequencies = 1.0 / powers
    return frequencies if config.rope_scaling is None else _scaled(frequencies, config.rope_scaling)


def _scaled(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Scale frequencies as Llama 3.1: long waves are stretched by `factor`, short ones kept, those between blended."""
    context = scaling.original_max_position_embeddings
    waves = 2 * pi / frequencies
    keep = (context / waves - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blended = (1 - keep) * frequencies / scaling.factor + keep * frequencies
    kept_or_blended = torch.where(waves < context / scaling.high_freq_factor, frequencies, blended)
    return torch.where(waves > context / scaling.low_freq_factor, frequencies / scaling.factor, kept_or_blended)
