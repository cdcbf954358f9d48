"""Images in place of texts: what a model takes as a prompt, and the rows that it makes of it."""

from typing import Annotated

from msgspec import Meta

from livescale.shared.messages.message import Message

# An image travels in a request, and the bus takes messages of 1 MiB: what is left is for all else in them.
MOST_IMAGE_BYTES = 1_000_000
MOST_IMAGE_ROWS = 2_048  # a step, in which an image runs whole, has no more
CHANNELS = 3
Side = Annotated[int, Meta(ge=1, le=1_024)]
Finite = Annotated[float, Meta(ge=-1e6, le=1e6)]
Deviation = Annotated[float, Meta(ge=1e-6, le=1e6)]


class Images(Message, frozen=True, kw_only=True):
    """The images that a model takes: `size` x `size` pixels in RGB, cut into patches of `patch` x `patch` pixels.

    Images of other sizes are resized by the filter `resample`, named as Pillow numbers them. A value of a pixel, 0 to
    255, is multiplied by `scale`; then the channel's `mean` is subtracted, and what is left divided by its `deviation`.
    """

    size: Side
    patch: Side
    resample: Annotated[int, Meta(ge=0, le=5)] = 2
    scale: Finite = 1 / 255
    mean: tuple[Finite, Finite, Finite] = (0.5, 0.5, 0.5)
    deviation: tuple[Deviation, Deviation, Deviation] = (0.5, 0.5, 0.5)

    @property
    def side(self) -> int:
        """How many patches are beside each other; pixels that fill none are left out."""
        return self.size // self.patch

    @property
    def rows(self) -> int:
        """The rows of an image: one for the image as a whole, and one for each patch."""
        return 1 + self.side**2

    @property
    def size_bytes(self) -> int:
        """The bytes of an image, row by row of pixels, three bytes each."""
        return CHANNELS * self.size**2

    @property
    def patch_values(self) -> int:
        """The numbers of a patch: one for each channel of each of its pixels."""
        return CHANNELS * self.patch**2
