"""The process that decodes images of clients: files that others made, so the kernel bounds its time and memory."""

import struct
import sys
from binascii import Error as Base64Error
from binascii import a2b_base64
from io import BytesIO

import msgspec
from PIL import Image, ImageOps, UnidentifiedImageError

from livescale.shared.messages.images import Images
from livescale.shared.process.bounded_answers import answer_all

MEMORY_BYTES = 512 << 20  # four copies of the largest image, and what an idle process has
MOST_PIXELS = 20_000_000
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
DAMAGED = (OSError, ValueError, SyntaxError, EOFError, IndexError, TypeError, struct.error, MemoryError)


class Encoded(msgspec.Struct, frozen=True):
    """An image as a file in base64, and the images that the model takes."""

    data: str
    images: Images


class Decoded(msgspec.Struct, frozen=True):
    """The pixels as the model takes them, or the reason why there are none. One that is `too_large` was not decoded."""

    pixels: bytes = b""
    refusal: str = ""
    too_large: bool = False


def answer(data: bytes) -> bytes:
    """Decode the image of an encoded Encoded, and return the encoded Decoded."""
    work = msgspec.msgpack.decode(data, type=Encoded)
    return msgspec.msgpack.encode(decode(work.data, work.images))


def decode(data: str, images: Images) -> Decoded:
    """An image in the size that the model takes, with the pixels that transformers' pipeline has."""
    try:
        file = a2b_base64(data, strict_mode=True)
    except (Base64Error, ValueError) as error:
        return Decoded(refusal=f"its base64 is damaged ({error}); encode the file again")
    try:
        with Image.open(BytesIO(file), formats=FORMATS) as image:
            width, height = image.size  # of the header: nothing has been decoded yet
            if width * height > MOST_PIXELS:
                return Decoded(
                    refusal=f"it has {width} x {height} pixels, and may have {MOST_PIXELS}; make it smaller",
                    too_large=True,
                )
            upright = ImageOps.exif_transpose(image).convert("RGB")
    except DAMAGED as error:
        formats = ", ".join(FORMATS)
        return Decoded(refusal=f"it cannot be read ({_reason(error)}); send a file that is one of {formats}")
    resized = upright.resize((images.size, images.size), resample=Image.Resampling(images.resample))
    return Decoded(pixels=resized.tobytes())


def _reason(error: BaseException) -> str:
    """What a library says of a file, without the address of an object of ours."""
    return "its format is unknown" if isinstance(error, UnidentifiedImageError) else str(error)[:200]


if __name__ == "__main__":
    Image.MAX_IMAGE_PIXELS = None  # which warns of less than is permitted here
    Image.init()  # or the first image of a rarer format would pay for it
    answer_all(answer, sys.stdin.buffer, sys.stdout.buffer, float(sys.argv[1]), MEMORY_BYTES)
