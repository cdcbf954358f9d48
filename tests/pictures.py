"""Images as clients send them."""

import base64
from io import BytesIO
from typing import Any

from PIL import Image


def encoded(image: Image.Image, format: str, **fields: Any) -> str:
    """An image as a file of this format, in base64."""
    file = BytesIO()
    image.save(file, format, **fields)
    return base64.b64encode(file.getvalue()).decode()
