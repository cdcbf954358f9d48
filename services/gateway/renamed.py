"""Errors of chats in the words of endpoints that call the same parameters otherwise."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from msgspec.structs import replace

from livescale.services.gateway.errors import ApiError

NO_OTHERS: Mapping[str, str] = {}


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Have errors of the block name an endpoint's own parameters. `names`: what the chat's become, by patterns of
    them."""
    try:
        yield
    except ApiError as error:
        detail = error.detail
        message, param = detail.message, detail.param
        for pattern, name in names.items():
            message = re.sub(f"'{pattern}'", f"'{name}'", message)
            param = param and re.sub(f"^{pattern}$", name, param)
        error.args, error.detail = (message,), replace(detail, message=message, param=param)
        raise
