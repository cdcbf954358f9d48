"""Decodes images that clients send, in a process beside the gateway."""

import msgspec
import structlog

from livescale.services.gateway.bounded_work import BoundedWork
from livescale.services.gateway.errors import ApiError, bad_request
from livescale.services.gateway.image_process import MEMORY_BYTES, Decoded, Encoded
from livescale.shared.messages.images import MOST_IMAGE_BYTES, Images

PROCESSOR_SECONDS = 5.0  # for one image; the largest takes about one
LARGEST_ANSWER = MOST_IMAGE_BYTES + 4_096
SCHEME, BASE64 = "data:", ";base64"

log = structlog.get_logger()


class ImageDecoder(BoundedWork):
    """Decodes and resizes images in a process of its own, one after the other, within bounds of time and memory."""

    def __init__(self, processor_seconds: float = PROCESSOR_SECONDS) -> None:
        super().__init__("image_process", processor_seconds, MEMORY_BYTES, LARGEST_ANSWER)

    async def decode(self, url: str, images: Images, param: str) -> bytes:
        """The pixels of the image in a data URL, as the model takes them. Raises ApiError 400 and 413, which name the
        parameter."""
        work = msgspec.msgpack.encode(Encoded(_base64_of(url, param), images))
        async with self._turn:
            answer = await self._process.ask(work)
        if answer is None:
            log.warning("image_decoding_overran", size_bytes=len(work))
            decoded = Decoded(refusal=self._overran)
        else:
            decoded = msgspec.msgpack.decode(answer, type=Decoded)
        if decoded.too_large:
            raise ApiError(
                413, f"The image in {param!r} is refused: {decoded.refusal}.", param=param, code="image_too_large"
            )
        if decoded.refusal:
            raise bad_request(f"The image in {param!r} is refused: {decoded.refusal}.", param, code="invalid_image")
        return decoded.pixels


def _base64_of(url: str, param: str) -> str:
    """What a data URL carries. Raises ApiError 400 for any other URL."""
    head, comma, data = url.partition(",")
    if not (head[: len(SCHEME)].lower() == SCHEME and comma and head.lower().endswith(BASE64)):
        raise bad_request(
            f"{param!r} must have images as data URLs in base64, data:image/png;base64,...; nothing is fetched from "
            "other URLs.",
            param,
            code="invalid_image",
        )
    return data
