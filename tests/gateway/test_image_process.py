"""Images become the pixels that transformers' pipeline has; what cannot be decoded is refused with the reason."""

import base64
import struct
import zlib

import msgspec
import numpy as np
import pytest
import transformers
from PIL import Image
from transformers.image_utils import load_image

from livescale.services.gateway.image_process import MOST_PIXELS, Decoded, Encoded, answer, decode
from livescale.shared.messages.images import Images
from tests.pictures import encoded

SIZE = 48
IMAGES = Images(size=SIZE, patch=8)
PIXELS = np.random.default_rng(2).integers(0, 256, (60, 83, 4), np.uint8)


def turned() -> Image.Exif:
    """The note of a camera that was held sideways."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


FILES = {
    "png": encoded(Image.fromarray(PIXELS[..., :3]), "PNG"),
    "png-transparent": encoded(Image.fromarray(PIXELS), "PNG"),
    "png-grey": encoded(Image.fromarray(PIXELS[..., 0]), "PNG"),
    "png-palette": encoded(Image.fromarray(PIXELS[..., :3]).convert("P"), "PNG"),
    "jpeg": encoded(Image.fromarray(PIXELS[..., :3]), "JPEG"),
    "jpeg-turned": encoded(Image.fromarray(PIXELS[..., :3]), "JPEG", exif=turned()),
    "jpeg-cmyk": encoded(Image.fromarray(PIXELS[..., :3]).convert("CMYK"), "JPEG"),
    "webp": encoded(Image.fromarray(PIXELS[..., :3]), "WEBP"),
    "gif": encoded(Image.fromarray(PIXELS[..., :3]), "GIF"),
    "bmp": encoded(Image.fromarray(PIXELS[..., :3]), "BMP"),
}


@pytest.mark.parametrize("resample", range(6))
@pytest.mark.parametrize("name", FILES)
def test_pixels_are_those_of_transformers_bit_for_bit(name: str, resample: int) -> None:
    """The pipeline loads an image, and its processor resizes it."""
    processor = transformers.ViTImageProcessorPil(
        size={"height": SIZE, "width": SIZE}, resample=resample, do_rescale=False, do_normalize=False
    )
    image = load_image(f"data:image/png;base64,{FILES[name]}")
    right = processor(image, return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)
    made = decode(FILES[name], msgspec.structs.replace(IMAGES, resample=resample))
    assert not made.refusal
    assert np.array_equal(np.frombuffer(made.pixels, np.uint8).reshape(SIZE, SIZE, 3), right)


def header(width: int, height: int) -> str:
    """A PNG that says it has so many pixels, and has none."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    signature = b"\x89PNG\r\n\x1a\n"
    file = signature + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return base64.b64encode(file + struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))).decode()


def test_an_image_that_is_too_large_is_refused_by_its_header() -> None:
    assert decode(header(5_000, 4_001), IMAGES) == Decoded(
        refusal=f"it has 5000 x 4001 pixels, and may have {MOST_PIXELS}; make it smaller", too_large=True
    )
    assert not decode(header(5_000, 4_000), IMAGES).too_large


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("", "it cannot be read (its format is unknown)"),
        ("!!!!", "its base64 is damaged"),
        (FILES["png"] + "A", "its base64 is damaged"),
        (base64.b64encode(b"%PDF-1.7").decode(), "it cannot be read (its format is unknown)"),
        (base64.b64encode(base64.b64decode(FILES["png"])[:900]).decode(), "it cannot be read"),
        (base64.b64encode(base64.b64decode(FILES["jpeg"])[:900]).decode(), "it cannot be read"),
        (encoded(Image.fromarray(PIXELS[..., :3]), "PPM"), "it cannot be read (its format is unknown)"),
    ],
)
def test_what_cannot_be_decoded_is_refused_with_the_reason(data: str, said: str) -> None:
    made = decode(data, IMAGES)
    assert said in made.refusal
    assert (made.pixels, made.too_large) == (b"", False)


def test_work_and_answer_are_encoded() -> None:
    said = answer(msgspec.msgpack.encode(Encoded(FILES["png"], IMAGES)))
    assert msgspec.msgpack.decode(said, type=Decoded) == decode(FILES["png"], IMAGES)
