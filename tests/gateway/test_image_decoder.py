"""Images of clients are decoded in a process of their own."""

import pytest
from PIL import Image

from livescale.services.gateway.errors import ApiError
from livescale.services.gateway.image_decoder import ImageDecoder
from livescale.services.gateway.image_process import decode
from tests.gateway.test_image_process import FILES, IMAGES, header
from tests.pictures import encoded


async def test_images_are_decoded_one_after_the_other() -> None:
    async with ImageDecoder() as decoder:
        for name in ("png", "jpeg"):
            made = await decoder.decode(f"data:image/{name};base64,{FILES[name]}", IMAGES, "input")
            assert made == decode(FILES[name], IMAGES).pixels


@pytest.mark.parametrize(
    ("url", "status", "code", "said"),
    [
        ("https://example.org/cat.png", 400, "invalid_image", "nothing is fetched from other URLs"),
        ("data:image/png,%89PNG", 400, "invalid_image", "must have images as data URLs in base64"),
        (FILES["png"], 400, "invalid_image", "must have images as data URLs in base64"),
        ("data:image/png;base64,AAAA", 400, "invalid_image", "it cannot be read"),
        (f"data:;base64,{header(5_000, 4_001)}", 413, "image_too_large", "may have 20000000; make it smaller"),
    ],
)
async def test_what_is_no_image_is_refused_by_name(url: str, status: int, code: str, said: str) -> None:
    async with ImageDecoder() as decoder:
        with pytest.raises(ApiError, match=said) as refused:
            await decoder.decode(url, IMAGES, "input")
    assert (refused.value.status, refused.value.detail.code, refused.value.detail.param) == (status, code, "input")


async def test_a_file_that_takes_too_long_is_refused() -> None:
    large = encoded(Image.new("RGB", (3_000, 3_000)), "PNG")
    async with ImageDecoder(processor_seconds=0.02) as decoder:
        with pytest.raises(ApiError, match=r"it took more than 0.02 s of the processor's time, or 512 MiB"):
            await decoder.decode(f"data:image/png;base64,{large}", IMAGES, "input")
