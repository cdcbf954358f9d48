"""The embeddings of images: patches of pixels times a matrix, after the row that stands for the whole image."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from livescale.services.worker.engine.kernels.variants import Kernels
from livescale.services.worker.engine.matrices import make_linear
from livescale.services.worker.engine.parameters import Tensors
from livescale.services.worker.scheduling.batch import ScheduledChunk
from livescale.shared.messages.images import CHANNELS, Images
from livescale.shared.model.declaration.tensors import EMBEDDING, PATCHES


class Patches:
    """Makes the first rows of images of the first block's tensors."""

    def __init__(self, images: Images, tensors: Tensors, kernels: Kernels | None) -> None:
        self._images = images
        self._whole = tensors[EMBEDDING]
        self._matrix = make_linear(tensors, PATCHES, kernels=kernels)
        self._values = values_of(images)

    def embed(self, chunks: Sequence[ScheduledChunk]) -> torch.Tensor:
        """The rows `[row, hidden]` of the images of `chunks`, each of which is a whole image."""
        cut = np.concatenate([self._cut(chunk.pixels) for chunk in chunks])
        patches = torch.from_numpy(cut).to(self._whole.device, self._whole.dtype)
        products = self._matrix(self._matrix.padded(patches))[: len(patches)]
        return torch.cat(list(self._rows(products)))

    def _rows(self, products: torch.Tensor) -> Iterator[torch.Tensor]:
        for image in torch.split(products, self._images.rows - 1):
            yield self._whole
            yield image

    def _cut(self, pixels: bytes) -> "npt.NDArray[np.float32]":
        """The patches of an image, row by row, each as its channels one after the other: `[patch, value]`."""
        size, side, patch = self._images.size, self._images.side, self._images.patch
        image = np.frombuffer(pixels, np.uint8).reshape(size, size, CHANNELS)[: side * patch, : side * patch]
        numbers = np.stack([self._values[channel][image[..., channel]] for channel in range(CHANNELS)])
        cut = numbers.reshape(CHANNELS, side, patch, side, patch).transpose(1, 3, 0, 2, 4)
        return cut.reshape(side * side, self._images.patch_values)


def values_of(images: Images) -> "npt.NDArray[np.float32]":
    """What each value of a pixel becomes, `[channel, value]`: scaled in float64 and normalized in float32, with the
    bits of transformers."""
    scaled = (np.arange(256, dtype=np.float64) * images.scale).astype(np.float32)
    mean = np.array(images.mean, np.float32)[:, None]
    deviation = np.array(images.deviation, np.float32)[:, None]
    values: npt.NDArray[np.float32] = (scaled - mean) / deviation
    return values
