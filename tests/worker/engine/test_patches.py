"""Pixels become the numbers that they become in transformers, and patches are cut as a convolution sees them."""

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from livescale.services.worker.engine.patches import Patches, values_of
from livescale.services.worker.scheduling.batch import ScheduledChunk
from livescale.shared.messages.images import Images
from livescale.shared.model.declaration.tensors import EMBEDDING, PATCHES

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.mark.parametrize("scale", [1 / 255, 0.005, 1.0])
def test_each_value_of_a_pixel_becomes_what_transformers_makes_of_it(scale: float) -> None:
    every = np.repeat(np.arange(256, dtype=np.uint8).reshape(16, 16, 1), 3, axis=2)
    processor = transformers.ViTImageProcessorPil(
        size={"height": 16, "width": 16}, image_mean=MEAN, image_std=DEVIATION, rescale_factor=scale
    )
    right = processor(Image.fromarray(every), return_tensors="np")["pixel_values"][0].reshape(3, 256)
    values = values_of(Images(size=16, patch=4, scale=scale, mean=MEAN, deviation=DEVIATION))
    assert values.dtype == np.float32
    assert values.tobytes() == right.tobytes()


def test_patches_are_those_of_a_convolution_and_pixels_that_fill_none_are_left_out() -> None:
    images, hidden = Images(size=11, patch=3), 8
    torch.manual_seed(1)
    kernel, bias, whole = torch.randn(hidden, 3, 3, 3), torch.randn(hidden), torch.randn(1, hidden)
    tensors = {EMBEDDING: whole, f"{PATCHES}.weight": kernel.flatten(1), f"{PATCHES}.bias": bias}
    pixels = np.random.default_rng(1).integers(0, 256, (2, 11, 11, 3), np.uint8)
    chunks = [
        ScheduledChunk(str(place), (0,) * images.rows, 0, range(1), False, whole=True, pixels=one.tobytes())
        for place, one in enumerate(pixels)
    ]
    made = Patches(images, tensors, None).embed(chunks)
    numbers = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255 * 2 - 1
    right = torch.nn.functional.conv2d(numbers, kernel, bias, stride=3).flatten(2).transpose(1, 2)
    for rows, expected in zip(torch.split(made, images.rows), right, strict=True):
        assert torch.equal(rows[:1], whole)
        assert torch.allclose(rows[1:], expected, atol=1e-4)
